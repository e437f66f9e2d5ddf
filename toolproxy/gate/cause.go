// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"syscall"
)

// CauseOf names what lies beneath err, for a log. Clients and parsers quote what they failed at: a URL with an agent's
// arguments, a value, a member's name (M-18). So of an error that wraps others nothing is taken; of one that doesn't,
// the text where it is a fixed sentence (errors.New), an errno or the end of a context, and its type otherwise.
func CauseOf(err error) string {
	if err == nil {
		return ""
	}
	if v := reflect.ValueOf(err); v.Kind() == reflect.Pointer && v.IsNil() {
		return fmt.Sprintf("%T", err)
	}
	switch wrapped := err.(type) { //nolint:errorlint // this walks the chain itself
	case interface{ Unwrap() error }:
		if inner := wrapped.Unwrap(); inner != nil {
			return CauseOf(inner)
		}
	case interface{ Unwrap() []error }:
		var all []string
		for _, inner := range wrapped.Unwrap() {
			all = append(all, CauseOf(inner))
		}
		return strings.Join(all, "; ")
	}
	_, number := err.(syscall.Errno)                //nolint:errorlint // as above
	if number || err == context.DeadlineExceeded || //nolint:errorlint // one that only says it is that may quote
		reflect.TypeOf(err) == sentence {
		return err.Error()
	}
	return fmt.Sprintf("%T", err)
}

// sentence is the type of errors.New, and of fmt.Errorf without %w: whoever makes one of those here quotes nothing.
var sentence = reflect.TypeOf(errors.New(""))
