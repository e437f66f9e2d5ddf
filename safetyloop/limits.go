// SPDX-License-Identifier: Apache-2.0

package safetyloop

import "time"

// Limits. What an agent sends and what is kept for it is bounded, and what is full refuses: nothing is made room for by forgetting
// a stop, a challenge or a confirmation that waits.
const (
	// MaxHint bounds nextActionHint in bytes. All of it is judged: a longer one is refused, never cut, because what is cut off is
	// where a verb would be hidden (S-5).
	MaxHint = 32 << 10
	// MaxName bounds element_name, goalId and the like, MaxText descriptions, findings, summaries and reasons, in bytes.
	MaxName = 128
	MaxText = 16 << 10

	// ChallengeTTL, TokenTTL and IntentTTL are how long a code, a token and an approved step are good (S-10, S-12, S-15).
	ChallengeTTL = 5 * time.Minute
	TokenTTL     = 5 * time.Minute
	IntentTTL    = 5 * time.Minute

	maxPrincipal     = 256  // bytes of its name: an identifier of the audit
	maxPrincipals    = 1024 // with anything in memory
	idlePrincipal    = time.Hour
	maxWaiting       = 64 // calls of one principal at a time
	maxExecutions    = 64 // running, of one principal
	maxTokens        = 32 // of one principal that wait or lie confirmed
	maxSpent         = 64 // of one principal that are used or expired, kept to say so
	maxChallenges    = 256
	maxOwnChallenges = 16      // of one principal
	maxIntents       = 16      // approved steps of one agent that no call has used
	maxNotes         = 16      // notifications of one execution that aren't danger_zone
	maxDangerNotes   = 64      // and that are; beyond, the last one counts the others
	maxOutcomes      = 10      // remembered of one principal
	maxSummary       = 8 << 10 // bytes of a hint or a reason that an operator reads

	callTime    = 30 * time.Second // of one call, once it has begun
	judgeTime   = 5 * time.Second
	enforceTime = 10 * time.Second
	channelTime = 10 * time.Second
	maxShowing  = 32 // deliveries to channels at a time

	// S-11.
	maxFailures   = 10
	failureWindow = time.Minute
	maxLockout    = 24 * time.Hour
	forgiveAfter  = 24 * time.Hour
)
