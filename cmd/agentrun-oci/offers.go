// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"agentrun/internal/read"
)

// offersFile lists the folders of the host that bundles may show, one a line: who writes a bundle decides nothing about the host. {pod} in a
// line is the uid of the container's pod, so that a pod is shown nothing of another's. One that others could have written is refused.
const offersFile = "/etc/agentrun/oci-mounts"

func offers(pod string) (list []string, err error) { return offersIn(offersFile, pod) }

func offersIn(file, pod string) (list []string, err error) {
	text, err := read.File(file, read.OthersMayWrite, maxBundle)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case !filepath.IsAbs(line) || filepath.Clean(line) == "/":
			return nil, fmt.Errorf("%s: %.200q is no folder below /", file, line)
		default:
			if at, ok := ofPod(line, pod); ok {
				list = append(list, at)
			}
		}
	}
	return list, nil
}
