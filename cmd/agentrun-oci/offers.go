// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// offersFile lists the folders of the host that bundles may show, one a line: who writes a bundle decides nothing about the host.
const offersFile = "/etc/agentrun/oci-mounts"

func offers() (list []string, err error) {
	f, err := os.Open(offersFile)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case !filepath.IsAbs(line) || filepath.Clean(line) == "/":
			return nil, fmt.Errorf("%s: %.200q is no folder below /", offersFile, line)
		default:
			list = append(list, line)
		}
	}
	return list, lines.Err()
}
