// SPDX-License-Identifier: Apache-2.0

package conform

import (
	"errors"
	"fmt"
)

// Code is the stable name of what is wrong with a case. Codes are added, never changed.
type Code string

const (
	InvalidJSON    Code = "invalid_json"    // the line is not one JSON value in UTF-8
	LineTooLong    Code = "line_too_long"   // more than MaxLine
	UnknownOp      Code = "unknown_op"      // no operation of that name
	MissingField   Code = "missing_field"   // a field that must be there isn't
	UnknownField   Code = "unknown_field"   // a field the operation doesn't have
	DuplicateField Code = "duplicate_field" // a name twice in one object
	InvalidType    Code = "invalid_type"    // a value of another type than documented
	InvalidValue   Code = "invalid_value"   // a word that is none of those documented
	InvalidScore   Code = "invalid_score"   // a score that is no number from 0 to 1
	InvalidRing    Code = "invalid_ring"    // a ring that is none of 0, 1, 2, 3
	TooMany        Code = "too_many"        // a list longer than documented
	Internal       Code = "internal"        // a mistake of ours
)

// Error is what an answer has in place of "out".
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"message"` // for people
}

func (e *Error) Error() string { return e.Message }

func fault(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// asFault says that what has no code is a mistake of ours.
func asFault(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return fault(Internal, "%v", err)
}
