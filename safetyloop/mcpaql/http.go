// SPDX-License-Identifier: Apache-2.0

package mcpaql

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"agentrun/internal/mcpbound"
	"agentrun/safetyloop"
)

const (
	// DefaultIdle is how long a session may be silent.
	DefaultIdle = 30 * time.Minute

	maxSessions = 64       // of one principal: an agent that opens more keeps nobody else out
	maxOpening  = 32 << 10 // bytes of what opens one: it is kept, as values in memory, for as long as the session
	maxConns    = 256
	maxStranger = 64 // connections that have shown no token: who has one shows it at once
	headerTime  = 5 * time.Second
	requestTime = 30 * time.Second // to send a whole request
	answerTime  = time.Minute
	keepTime    = time.Minute // between two requests on a connection
	maxHeader   = 16 << 10
	endTime     = 2 * time.Second // for answers under way when the server ends
)

// HTTPOptions of Handler.
type HTTPOptions struct {
	Listens string // the address, host:port; beyond the loopback, Tokens must be there
	// Tokens gives those that hold now, asked for each request; nil: there are none, and everybody who reaches the address is Principal.
	Tokens    func() *Tokens
	Principal string        // of callers without a token; required without Tokens
	Hosts     []string      // names, without port, that a Host may have beside localhost and addresses
	Origins   []string      // that a browser's request may have, whole; usually none
	Idle      time.Duration // 0: DefaultIdle
}

// Handler serves POST and DELETE of /mcp.
func (s *Server) Handler(o HTTPOptions) (http.Handler, error) {
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("safety server on %.64q: %w", o.Listens, err)
	}
	if o.Idle == 0 {
		o.Idle = DefaultIdle
	}
	p := &principals{make: func() *mcp.Server { return s.server(o.caller) }, of: map[string]*mcp.Server{}}
	var handler http.Handler = mcp.NewStreamableHTTPHandler(p.server, &mcp.StreamableHTTPOptions{
		JSONResponse:               true,
		SessionTimeout:             o.Idle,
		MaxRequestBodyBytes:        maxMessage,
		DisableLocalhostProtection: true, // check has it, for every address
	})
	handler = p.limitSessions(http.MaxBytesHandler(mcpbound.Single(handler), maxMessage))
	if o.Tokens != nil {
		handler = auth.RequireBearerToken(o.verify, nil)(handler)
	}
	return o.guard(handler), nil
}

func (o HTTPOptions) check() error {
	host, _, err := net.SplitHostPort(o.Listens)
	if err != nil {
		return err
	}
	ip := net.ParseIP(host)
	if ip == nil {
		return errors.New("want an address with its port, as 127.0.0.1:7077")
	}
	if o.Tokens == nil && !ip.IsLoopback() {
		return errors.New("others can reach it: it needs tokens")
	}
	if o.Tokens == nil && o.Principal == "" {
		return errors.New("no principal and no tokens")
	}
	if o.Idle < 0 {
		return errors.New("idle time below zero")
	}
	return nil
}

// guard is what every request passes first. A page that had its name's address changed to ours (DNS rebinding) still sends the
// name as Host; one of another origin says that. Programs send no Origin.
func (o HTTPOptions) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("X-Content-Type-Options", "nosniff")
		switch {
		case !o.hostAllowed(r.Host):
			http.Error(w, "this Host isn't served here", http.StatusForbidden)
		case len(r.Header.Values("Origin")) > 0 && !o.originAllowed(r.Header.Values("Origin")):
			http.Error(w, "this Origin isn't allowed", http.StatusForbidden)
		case r.URL.Path != "/mcp":
			http.Error(w, "the safety loop is at /mcp", http.StatusNotFound)
		case r.Method != http.MethodPost && r.Method != http.MethodDelete:
			// No stream for the server's own messages: it has none, and a held GET would be a place for nothing.
			h.Set("Allow", "POST, DELETE")
			http.Error(w, "POST or DELETE", http.StatusMethodNotAllowed)
		default:
			if o.Tokens == nil { // everybody who comes so far is a principal
				admit(r.Context(), o.Principal)
			}
			next.ServeHTTP(w, r)
		}
	})
}

func (o HTTPOptions) hostAllowed(hostport string) bool {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	host = strings.Trim(host, "[]")
	return net.ParseIP(host) != nil || strings.EqualFold(host, "localhost") ||
		slices.ContainsFunc(o.Hosts, func(name string) bool { return strings.EqualFold(name, host) })
}

func (o HTTPOptions) originAllowed(given []string) bool {
	return len(given) == 1 && slices.Contains(o.Origins, given[0])
}

// verify is asked for each request. The SDK holds a session to the UserID that opened it.
func (o HTTPOptions) verify(_ context.Context, text string, r *http.Request) (*auth.TokenInfo, error) {
	tokens := o.Tokens()
	if tokens == nil {
		return nil, auth.ErrInvalidToken
	}
	t, ok := tokens.find(text)
	if !ok {
		return nil, auth.ErrInvalidToken
	}
	admit(r.Context(), t.Name)
	return &auth.TokenInfo{UserID: t.Name, Expiration: time.Now().Add(time.Hour), Extra: map[string]any{roleKey: t.Role}}, nil
}

const roleKey = "role"

// caller is who the request's token says. With tokens asked for and none there, nobody: the loop refuses an empty principal.
func (o HTTPOptions) caller(_ context.Context, r *mcp.CallToolRequest) safetyloop.Caller {
	if o.Tokens == nil {
		return safetyloop.Caller{Principal: o.Principal}
	}
	if r.Extra == nil || r.Extra.TokenInfo == nil {
		return safetyloop.Caller{}
	}
	role, _ := r.Extra.TokenInfo.Extra[roleKey].(Role)
	return safetyloop.Caller{Principal: r.Extra.TokenInfo.UserID, Operator: role == Operator}
}

// principals have a server each, whose sessions can be counted. There are no more of them than tokens.
type principals struct {
	make func() *mcp.Server
	mu   sync.Mutex
	of   map[string]*mcp.Server
}

// server is that of the request's owner, whom verify has found; without tokens all have one.
func (p *principals) server(r *http.Request) *mcp.Server {
	name := ""
	if t := auth.TokenInfoFromContext(r.Context()); t != nil {
		name = t.UserID
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of[name] == nil {
		p.of[name] = p.make()
	}
	return p.of[name]
}

// limitSessions counts before one more is opened.
func (p *principals) limitSessions(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Mcp-Session-Id") == "" {
			n := 0
			for range p.server(r).Sessions() {
				n++
			}
			if n >= maxSessions {
				http.Error(w, "too many sessions", http.StatusServiceUnavailable)
				return
			}
			r.Body = http.MaxBytesReader(w, r.Body, maxOpening)
		}
		next.ServeHTTP(w, r)
	})
}

// Serve answers the connections of l until ctx ends.
func Serve(ctx context.Context, l net.Listener, h http.Handler) error {
	server := &http.Server{
		Handler: h, ReadHeaderTimeout: headerTime, ReadTimeout: requestTime, WriteTimeout: answerTime, IdleTimeout: keepTime, MaxHeaderBytes: maxHeader,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, seatKey{}, c) },
	}
	stop := context.AfterFunc(ctx, func() {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
		defer cancel()
		if server.Shutdown(ending) != nil {
			_ = server.Close()
		}
	})
	defer stop()
	err := server.Serve(&seats{Listener: l, of: map[string][]*seat{}})
	if ctx.Err() != nil || errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// seats bounds the connections. Those that have shown no token are the stranger's, the others their principal's. One too many
// ends the oldest of whoever has most: who can connect, or has one token of many, would else take all places.
type seats struct {
	net.Listener
	mu sync.Mutex
	n  int
	of map[string][]*seat // by principal, the oldest first
}

const stranger = "" // no token has that name

type seat struct {
	net.Conn
	among *seats
	whose string // under among.mu
	left  bool
}

type seatKey struct{}

// Accept implements net.Listener.
func (s *seats) Accept() (net.Conn, error) {
	conn, err := s.Listener.Accept()
	if err != nil {
		return nil, err
	}
	one := &seat{Conn: conn, among: s}
	if gone := s.take(one); gone != nil {
		_ = gone.Close()
	}
	return one, nil
}

// take counts one more, and returns which has to go for it.
func (s *seats) take(one *seat) *seat {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n++
	s.of[stranger] = append(s.of[stranger], one)
	most := stranger
	if len(s.of[stranger]) <= maxStranger {
		if s.n <= maxConns {
			return nil
		}
		for name, list := range s.of {
			if len(list) > len(s.of[most]) {
				most = name
			}
		}
	}
	return s.of[most][0]
}

// Close implements net.Conn. The place is free at once.
func (c *seat) Close() error {
	c.among.mu.Lock()
	if !c.left {
		c.left = true
		c.among.n--
		c.among.drop(c)
	}
	c.among.mu.Unlock()
	return c.Conn.Close()
}

func (s *seats) drop(c *seat) {
	s.of[c.whose] = slices.DeleteFunc(s.of[c.whose], func(other *seat) bool { return other == c })
	if len(s.of[c.whose]) == 0 {
		delete(s.of, c.whose)
	}
}

// admit has the connection of a request be this principal's.
func admit(ctx context.Context, principal string) {
	c, ok := ctx.Value(seatKey{}).(*seat)
	if !ok {
		return
	}
	s := c.among
	s.mu.Lock()
	defer s.mu.Unlock()
	if !c.left && c.whose != principal {
		s.drop(c)
		c.whose = principal
		s.of[principal] = append(s.of[principal], c)
	}
}
