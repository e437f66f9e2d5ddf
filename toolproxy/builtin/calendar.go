// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"context"
	"fmt"
	"regexp"
	"time"
	_ "time/tzdata" // the gateway's view of the host may have no time zones

	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/tools"
)

type calendarArgs struct {
	Op      string `json:"op"`
	Zone    string `json:"zone"`
	From    string `json:"from"`
	To      string `json:"to"`
	Years   int    `json:"years"`
	Months  int    `json:"months"`
	Days    int    `json:"days"`
	Seconds int64  `json:"seconds"`
	Step    int    `json:"step"`
}

const (
	maxRange   = 1000 // dates
	maxYears   = 9999
	maxMonths  = 120000
	maxDays    = 4000000
	maxSeconds = 10_000_000_000
)

type moment struct {
	Time    string `json:"time"` // RFC 3339
	Date    string `json:"date"`
	Weekday string `json:"weekday"`
	Zone    string `json:"zone"`
	Unix    int64  `json:"unix"`
	YearDay int    `json:"year_day"`
	ISOWeek string `json:"iso_week"`
}

func momentOf(t time.Time) (moment, *gate.Error) {
	if t.Year() < 1 || t.Year() > maxYears {
		return moment{}, tools.BadArguments("the result is not in the years 1 to %d", maxYears)
	}
	year, week := t.ISOWeek()
	return moment{
		Time: t.Format(time.RFC3339), Date: t.Format(time.DateOnly), Weekday: t.Weekday().String(), Zone: t.Location().String(),
		Unix: t.Unix(), YearDay: t.YearDay(), ISOWeek: fmt.Sprintf("%04d-W%02d", year, week),
	}, nil
}

type calendar struct{ clock func() time.Time }

func (cal calendar) run(_ context.Context, _ tools.Call, args calendarArgs) (any, error) {
	zone, err := zoneOf(args.Zone)
	if err != nil {
		return nil, err
	}
	from := cal.clock().In(zone)
	if args.From != "" && args.Op != "now" {
		if from, err = timeOf(args.From, zone); err != nil {
			return nil, err
		}
	}
	switch args.Op {
	case "now", "weekday":
		return answer(momentOf(from))
	case "add":
		return added(from, args)
	}
	to, err := timeOf(args.To, zone)
	if err != nil {
		return nil, err
	}
	switch args.Op {
	case "difference":
		return difference(from, to), nil
	case "range":
		return days(from, to, args.Step)
	}
	return nil, tools.BadArguments("op %.20q is not one of the schema's", args.Op)
}

// answer keeps a nil *gate.Error from becoming an error that isn't nil.
func answer[T any](v T, err *gate.Error) (any, error) {
	if err != nil {
		return nil, err
	}
	return v, nil
}

// zoneOf finds a zone by its IANA name. "Local" is refused: it would tell where the host is. LoadLocation looks into the
// host's zone files first; the letters that are let through make no path out of them.
func zoneOf(unsafeName string) (*time.Location, error) {
	if unsafeName == "" {
		return time.UTC, nil
	}
	if zoneName.MatchString(unsafeName) && unsafeName != "Local" {
		if zone, err := time.LoadLocation(unsafeName); err == nil {
			return zone, nil
		}
	}
	return nil, tools.BadArguments("zone %.70q is no IANA time zone", unsafeName)
}

var zoneName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9/_+-]{0,63}$`)

func timeOf(unsafeText string, zone *time.Location) (time.Time, error) {
	for _, layout := range []string{time.DateOnly, "2006-01-02T15:04:05", time.DateTime, "2006-01-02T15:04"} {
		if t, err := time.ParseInLocation(layout, unsafeText, zone); err == nil {
			return inYears(t)
		}
	}
	if t, err := time.Parse(time.RFC3339, unsafeText); err == nil {
		return inYears(t.In(zone))
	}
	return time.Time{}, tools.BadArguments(
		"%.40q is no date; write 2026-03-29, 2026-03-29T12:00:00 or 2026-03-29T12:00:00+02:00", unsafeText)
}

func inYears(t time.Time) (time.Time, error) {
	if t.Year() < 1 || t.Year() > maxYears {
		return time.Time{}, tools.BadArguments("dates are in the years 1 to %d", maxYears)
	}
	return t, nil
}

// added adds the calendar's units first, in the zone, and seconds last: a day over a change of the clocks is a day, 86400
// seconds are not. A month later than January 31 is March 3 (or 2), as in Go: the days that February lacks go over.
func added(from time.Time, args calendarArgs) (any, error) {
	if outside(args.Years, maxYears) || outside(args.Months, maxMonths) || outside(args.Days, maxDays) || outside(int(args.Seconds), maxSeconds) {
		return nil, tools.BadArguments("years, months, days or seconds are out of range")
	}
	t := from.AddDate(args.Years, args.Months, args.Days)
	// In two steps: a Duration ends at 292 years.
	return answer(momentOf(t.Add(time.Duration(args.Seconds/2) * time.Second).Add(time.Duration(args.Seconds-args.Seconds/2) * time.Second)))
}

func outside(n, most int) bool { return n < -most || n > most }

type span struct {
	Seconds  int64 `json:"seconds"`
	Days     int64 `json:"days"`     // dates from one to the other; changes of the clocks don't matter
	Weekdays int64 `json:"weekdays"` // of those, Mondays to Fridays; the end isn't counted
}

func difference(from, to time.Time) span {
	days := dayNumber(to) - dayNumber(from)
	return span{Seconds: to.Unix() - from.Unix(), Days: days, Weekdays: weekdays(dayNumber(to)) - weekdays(dayNumber(from))}
}

// dayNumber counts dates from 0001-01-01, a Monday.
func dayNumber(t time.Time) int64 {
	return time.Date(t.Year(), t.Month(), t.Day(), 0, 0, 0, 0, time.UTC).Unix()/86400 + 719162
}

// weekdays counts Mondays to Fridays among the days before day n.
func weekdays(n int64) int64 { return n/7*5 + min(n%7, 5) }

func days(from, to time.Time, step int) (any, error) {
	if step == 0 {
		step = 1
	}
	n := dayNumber(to) - dayNumber(from)
	switch {
	case step < 1 || step > maxDays:
		return nil, tools.BadArguments("step is 1 to %d days", maxDays)
	case n < 0:
		return nil, tools.BadArguments("the range ends before it begins")
	case n/int64(step) >= maxRange:
		return nil, tools.BadArguments("the range has more than %d dates; give a larger step", maxRange)
	}
	dates := []moment{}
	for i := int64(0); i <= n; i += int64(step) {
		m, err := momentOf(from.AddDate(0, 0, int(i)))
		if err != nil {
			return nil, err
		}
		dates = append(dates, m)
	}
	return dates, nil
}
