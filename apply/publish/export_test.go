package publish

// OpenFaulty is Open with a function that is called at each step of a recovery.
var OpenFaulty = openFaulty
