package container

const helperEnv = "ASPIS_TEST_HELPER"

func helperMain() {}
