// SPDX-License-Identifier: Apache-2.0

package safetycmd

import "github.com/urfave/cli/v2"

// ShowFlags are those of safetyloop.ShowArgs, and --check, which shows nothing and says what is wrong with them.
func ShowFlags() []cli.Flag {
	return append(channelFlags(), &cli.BoolFlag{Name: "check"})
}

func channelFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "show-codes-on", Usage: "also show codes on terminal `TTY`, which no agent may read"},
		&cli.StringFlag{Name: "webhook", Usage: "also post codes to `URL`: https, or http on the loopback"},
		&cli.StringFlag{Name: "webhook-key", Usage: "`FILE` with the key that signs them, mode 0600, 32 bytes or more"},
	}
}
