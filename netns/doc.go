// SPDX-License-Identifier: Apache-2.0

// Package netns makes the network namespace of a run: loopback up, and nothing else (M-7), and in
// it the sockets that are all there is to talk to.
//
// The namespace is made by the supervisor and joined by the sandbox, so it belongs to the supervisor's
// user namespace: no process inside can ever hold CAP_NET_ADMIN over it, add a route, or raise an
// interface, whatever becomes of the sandbox's own user namespace. Abstract unix sockets of the host
// are out of reach, being per network namespace (unix(7)).
//
//	ns, err := netns.New() // or Begin, and Make when it is known what will be in it
//	defer ns.Close()
//	attr := &syscall.ProcAttr{Files: []uintptr{ns.Fd()}}
//	err = ns.Capture()
//	files, err := ns.Sockets([]netns.Socket{{Port: 443}}) // for the gateway: where a connection was to go, LocalAddr tells
//
// A socket belongs to the namespace of the thread that made it, for good. Sockets makes its own on a
// thread that enters the namespace and then ends; they can be used by any process and goroutine. Do
// does the same for a function of the caller's; what it dials or listens on must be a numeric
// address, since a lookup runs on other threads, in the host's namespace.
//
// After Capture every IPv4 and IPv6 unicast address is one of the namespace itself ("AnyIP"), so a
// listener on a wildcard address gets the connections to its port, whatever their address. A port
// that nobody listens on answers "connection refused" at once. Before Capture any address but
// loopback is unreachable. Either way no packet can leave: there is no interface to leave by.
//
// Errors name the step and unwrap to the errno; whatever was begun is undone, but for routes: a
// namespace whose Capture returned an error must not be used.
//
// It does not protect against AF_VSOCK, which network namespaces do not confine before Linux 7.0:
// the seccomp filter refuses that family. Nor does it keep the agent from listening on a more specific
// address than ours and so talking to itself. The supervisor must dial the real upstream from a
// thread of its own, not from Do: it would reach only itself.
package netns
