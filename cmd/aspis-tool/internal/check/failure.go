package check

import (
	"errors"

	"github.com/aspis-dev/aspis/schemas"
)

// failure is why there is no answer.
type failure struct {
	reason schemas.DegradationReason
	detail string
}

func (f *failure) Error() string { return f.detail }

func reasonOf(err error) schemas.DegradationReason {
	var f *failure
	if errors.As(err, &f) {
		return f.reason
	}
	return schemas.ReasonError
}
