package publish_test

func writer(root string) int { return 0 }
