// SPDX-License-Identifier: Apache-2.0

package safetyloop

import (
	"errors"
	"fmt"
	"strings"
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

// Codes on the wire (S-1, S-12): those of the MCP-AQL draft, and no others.
const (
	CodeUnknownParam  = "VALIDATION_UNKNOWN_PARAM"
	CodeMissingParam  = "VALIDATION_MISSING_PARAM"
	CodeInvalidType   = "VALIDATION_INVALID_TYPE"
	CodeTooLarge      = "VALIDATION_PAYLOAD_TOO_LARGE"
	CodeNoOperation   = "NOT_FOUND_OPERATION"
	CodeNoResource    = "NOT_FOUND_RESOURCE"
	CodeDenied        = "PERMISSION_DENIED"
	CodeConfirmation  = "CONFIRMATION_REQUIRED"
	CodeExists        = "CONFLICT_ALREADY_EXISTS"
	CodeRateLimit     = "RATE_LIMIT_EXCEEDED"
	CodeInternal      = "INTERNAL_ERROR"
	CodeTokenInvalid  = "TOKEN_INVALID"
	CodeTokenExpired  = "TOKEN_EXPIRED"
	CodeTokenUsed     = "TOKEN_ALREADY_USED"
	CodeTokenMismatch = "TOKEN_SCOPE_MISMATCH"
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

func isUnread(err error) bool { return errors.Is(err, ErrUnread) }
