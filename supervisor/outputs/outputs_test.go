// SPDX-License-Identifier: Apache-2.0

package outputs

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestM18OutputIsSwept(t *testing.T) {
	o := Folder{StateDir: t.TempDir(), Log: slog.New(slog.DiscardHandler)}
	for name, age := range map[string]time.Duration{"old": 48 * time.Hour, "young": time.Hour} {
		f, err := o.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		at := time.Now().Add(-age)
		if err := os.Chtimes(f.Name(), at, at); err != nil {
			t.Fatal(err)
		}
		if _, err := o.Create(name); err == nil {
			t.Error("two runs write one file")
		}
	}
	lives, err := o.Create("lives") // and has written nothing for long
	if err != nil {
		t.Fatal(err)
	}
	defer lives.Close()
	long := time.Now().Add(-48 * time.Hour)
	if err := errors.Join(o.KeepAccount("lives", []byte("begun"), Policy{}), os.Chtimes(lives.Name(), long, long),
		os.Chtimes(filepath.Join(o.dir(), "lives"+accountSuffix), long, long)); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(o.dir(), "not-ours")
	if err := os.Symlink("/etc/passwd", other); err != nil {
		t.Fatal(err)
	}
	if err := o.sweep(24*time.Hour, time.Now()); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(o.dir())
	if err != nil || len(left) != 4 {
		t.Errorf("left: %v, %v, want not-ours, young.log and what there is of lives", left, err)
	}
}

// Accounts go by age, and the oldest beyond their number; one that was replaced is there once, and half of one is never read.
func TestM23AccountsArePruned(t *testing.T) {
	o := Folder{StateDir: t.TempDir(), Log: slog.New(slog.DiscardHandler)}
	age := func(name string, by time.Duration) {
		at := time.Now().Add(-by)
		if err := os.Chtimes(filepath.Join(o.dir(), name), at, at); err != nil {
			t.Fatal(err)
		}
	}
	for i := range maxAccounts + 5 {
		name := fmt.Sprintf("run%04d", i)
		if err := o.KeepAccount(name, []byte("begun"), Policy{}); err != nil {
			t.Fatal(err)
		}
		age(name+accountSuffix, time.Duration(i)*time.Second)
	}
	if err := o.KeepAccount("run0000", []byte("over"), Policy{}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(o.dir(), "cut"+halfSuffix), []byte("ha"), 0o600); err != nil {
		t.Fatal(err)
	}
	age("run0001"+accountSuffix, 25*time.Hour)
	age("cut"+halfSuffix, 25*time.Hour)
	if err := o.sweep(24*time.Hour, time.Now()); err != nil {
		t.Fatal(err)
	}
	all, err := o.Accounts()
	if err != nil || len(all) != maxAccounts || all[0].Run != "run0000" || string(all[0].Text) != "over" {
		t.Fatalf("got %d accounts, the newest %+v, %v, want %d", len(all), all[0], err, maxAccounts)
	}
	files, err := os.ReadDir(o.dir())
	if err != nil || len(files) != maxAccounts {
		t.Errorf("%d files, %v", len(files), err)
	}
	if info, err := os.Stat(filepath.Join(o.dir(), "run0000"+accountSuffix)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}
