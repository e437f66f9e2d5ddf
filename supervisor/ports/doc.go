// SPDX-License-Identifier: Apache-2.0

// Package ports lets a server inside a sandbox be looked at from the host (M-23): a Door listens on the host, and each connection that it
// takes is decided, bounded, counted, and then led to the sandbox.
//
//	door, err := ports.Listen(ports.Options{At: at, Port: 8000, Dial: dial, Allow: allow, Record: record, Slots: slots})
//	go door.Serve()
//	fmt.Println(door.Link()) // http://127.0.0.1:41234/?agentrun_token=…, works once
//	door.Cut()               // ends what is open
//	door.Close()
//
// Other users of the host, and every page in a browser on it, can connect to the loopback. So a Door speaks HTTP and asks for a secret: a link
// that works once and is turned into a cookie, or a bearer token for programs. Neither reaches the sandbox, whose server is the agent's and may
// mean harm: it sees requests that were written anew (package internal/wire), one for each connection. A Door without a token passes bytes.
//
// Errors are those of listening. What is wrong with a connection ends that connection, and is told to Record. It fails closed: what can't be
// recorded closes the Door.
//
// It doesn't protect the browser from the page: that is the agent's, and a browser that is let in executes what it says. Cookies belong to a
// host and not to a port, so pages of two Doors on one address see each other's cookies, but never those of a Door.
package ports
