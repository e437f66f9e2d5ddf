// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os/user"
	"strconv"

	"agentrun/control"
	"agentrun/internal/read"
)

// accessConfig is who besides root and the supervisor's own user may use the control API.
type accessConfig struct {
	ReadGroup    read.Word `yaml:"read_group"`    // by name or id: may look
	OperateGroup read.Word `yaml:"operate_group"` // may do everything
}

func (a accessConfig) resolve() (access control.Access, err error) {
	for field, of := range map[string]struct {
		name string
		id   *int
	}{"control.read_group": {string(a.ReadGroup), &access.ReadGroup}, "control.operate_group": {string(a.OperateGroup), &access.OperateGroup}} {
		if of.name == "" {
			continue
		}
		g, err := user.LookupGroup(of.name)
		if err != nil {
			g, err = user.LookupGroupId(of.name)
		}
		if err != nil {
			return access, fmt.Errorf("configuration: %s: no group %.64q on this host", field, of.name)
		}
		if *of.id, err = strconv.Atoi(g.Gid); err != nil || *of.id == 0 {
			return access, fmt.Errorf("configuration: %s: group %.64q can't be given access", field, of.name)
		}
	}
	return access, nil
}
