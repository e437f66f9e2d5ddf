// SPDX-License-Identifier: Apache-2.0

package safetyloop

import (
	"errors"
	"fmt"
	"strings"

	"agentrun/safetyloop/judge"
)

// Errors of New, of the operators' side, of Intent and of Blocked. None of them ever holds a code or a token.
var (
	ErrSetting  = errors.New("safety loop setting")
	ErrBlocked  = errors.New("the agent is stopped")
	ErrIntent   = errors.New("no approved step matches")
	ErrNotFound = errors.New("not there, or not any more")
	ErrCode     = errors.New("wrong code")
	ErrUsed     = errors.New("used already")
	ErrExpired  = errors.New("expired")
	ErrClosed   = errors.New("the safety loop is closed")
	ErrBusy     = errors.New("too much is under way")
	ErrRecord   = errors.New("the decision couldn't be recorded")
	ErrUnread   = errors.New("the store of blocks can't be read: every agent counts as stopped")
)

// Codes on the wire: judge's.
const (
	CodeUnknownParam  = judge.CodeUnknownParam
	CodeMissingParam  = judge.CodeMissingParam
	CodeInvalidType   = judge.CodeInvalidType
	CodeTooLarge      = judge.CodeTooLarge
	CodeNoOperation   = judge.CodeNoOperation
	CodeNoResource    = judge.CodeNoResource
	CodeDenied        = judge.CodeDenied
	CodeConfirmation  = judge.CodeConfirmation
	CodeExists        = judge.CodeExists
	CodeRateLimit     = judge.CodeRateLimit
	CodeInternal      = judge.CodeInternal
	CodeTokenInvalid  = judge.CodeTokenInvalid
	CodeTokenExpired  = judge.CodeTokenExpired
	CodeTokenUsed     = judge.CodeTokenUsed
	CodeTokenMismatch = judge.CodeTokenMismatch
)

func refusal(code string, details map[string]any, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...), Details: details}
}

// word is an error's code as the audit and the metrics spell it.
func word(e *Error) string {
	if e == nil {
		return "ok"
	}
	return strings.ToLower(e.Code)
}

func succeed(data any) Reply  { return Reply{Success: true, Data: data} }
func failed(err *Error) Reply { return Reply{Error: err} }
