// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"agentrun/rings"
)

// M-8, M-11: a tool in this process goes the agent's way: by the list, in its ring, cut with it, on record.
func TestM11TransportIsTheAgentsWay(t *testing.T) {
	w := newWorld(t, rings.Standard, allowed("allowed.example"))
	w.web(t, 80, func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/away" {
			http.Redirect(rw, r, "http://other.example/", http.StatusFound)
			return
		}
		fmt.Fprint(rw, "hello")
	})
	client := http.Client{Transport: w.Transport()}
	get := func(url string) (string, error) {
		resp, err := client.Get(url)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		return string(b), err
	}
	if got, err := get("http://allowed.example/"); got != "hello" {
		t.Errorf("got %q, %v", got, err)
	}
	for _, url := range []string{"http://other.example/", "https://other.example/", "http://allowed.example/away", "http://private.example/", "http://169.254.169.254/"} {
		if got, err := get(url); err == nil || !strings.Contains(err.Error(), "egress_denied") {
			t.Errorf("%s: got %q, %v", url, got, err)
		}
	}
	if len(w.names.questions()) != 1 {
		t.Errorf("looked up %v, want the one that is allowed", w.names.questions())
	}
	w.sup.set(rings.Sandbox)
	if got, err := get("http://allowed.example/"); err == nil {
		t.Errorf("ring 3: got %q", got)
	}
}
