// SPDX-License-Identifier: Apache-2.0

// Package uhttp is as much of HTTP/1.1 as an API on a unix socket needs: one request for each connection, and
// answers that are whole, a stream, or a change to another protocol.
//
// It is not a web server: there is no TLS, no routing, no keep-alive, no compression, no form. net/http costs
// 6 MiB resident in a supervisor of which there is one for each run, and reads far more than the API has a
// use for.
//
// Guarantees of the server's side: a request is read whole (head at most 8 KiB, body at most 64 KiB) or
// refused with a status; its path has one spelling, so that what was checked is what is looked up;
// Transfer-Encoding, two of Content-Length, folded lines and whatever else two parsers may read differently
// are refused (package internal/wire). What follows the request on its connection is never read as another
// one. An answer is framed so that its reader can tell a whole one from one that broke off.
//
//	r, err := uhttp.ReadRequest(br, conn)      // *Error: refuse with its status
//	w := uhttp.NewWriter(conn, time.Minute)
//	err = w.Send(200, "application/json", body) // or w.Start and w.Write…, or w.Upgrade
//	err = w.Finish(nil)
//
// The client's side takes what servers commonly send: Content-Length, chunked, until the end, interim
// answers.
//
//	resp, err := uhttp.Do(ctx, conn, uhttp.Call{Method: "GET", Target: "/v1/version"})
//	defer resp.Close()
//
// Errors: *Error for what the other side sent, those of the connection otherwise. Deadlines for reading are
// the caller's. It does not decide who may ask. It fails closed: an unclear request is an error and not a
// guess.
package uhttp
