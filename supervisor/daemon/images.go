// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	goruntime "runtime"

	"agentrun/control"
	"agentrun/images"
	"agentrun/supervisor"
)

// imageRoutes are about the images of the node. A pull is with the daemon's own credentials, so it is for whoever has them.
func (d *Daemon) imageRoutes() []control.Route {
	pull := route("POST", "/v1/images", d.pullImage)
	pull.Own, pull.Waits = true, true
	return []control.Route{route("GET", "/v1/images", d.listImages), pull, route("DELETE", "/v1/images", d.removeImage)}
}

func imageOf(i images.Info) control.Image {
	return control.Image{
		ID: i.ID, Names: append([]string{}, i.Names...), Manifest: i.Manifest, Platform: i.Platform, Source: i.Source, SignedBy: i.SignedBy,
		By: i.By, Created: i.Created, Bytes: i.Content.Bytes, Files: i.Content.Files, Live: i.Live,
	}
}

func (d *Daemon) listImages(context.Context, control.Request, struct{}) (any, error) {
	list, err := d.node.Images().List()
	all := []control.Image{}
	for _, i := range list {
		all = append(all, imageOf(i))
	}
	return control.ImageList{Images: all}, err
}

func (d *Daemon) pullImage(ctx context.Context, r control.Request, q control.ImagePull) (any, error) {
	if err := images.CheckName(q.Name); err != nil {
		return nil, badRequest("name", "%v", err)
	}
	said := &bytes.Buffer{}
	o := images.Order{Pull: q.Name, Platform: cmp.Or(q.Platform, "linux/"+goruntime.GOARCH), PlainHTTP: q.PlainHTTP}
	node, err := d.current()
	if err != nil {
		return nil, startRefusal(err, "")
	}
	i, _, err := node.BringImage(ctx, "pulled", r.By, o, said)
	if errors.Is(err, supervisor.ErrImageSaid) {
		err = errUnread
	}
	if err != nil {
		return nil, startRefusal(err, said.String())
	}
	info, err := d.node.Images().Inspect(i.ID)
	return imageOf(info), err
}

// imageRefusal is that of a request about an image: a run that names one which isn't there is a bad request.
func imageRefusal(err error) error {
	e := &control.Error{Status: 400, Code: control.CodeBadRequest, Message: err.Error(), Hint: supervisor.Hint(err)}
	switch {
	case errors.Is(err, images.ErrNone):
		e.Status, e.Code = 404, control.CodeNotFound
	case errors.Is(err, images.ErrBusy), errors.Is(err, supervisor.ErrImageKept):
		e.Status, e.Code = 409, control.CodeConflict
	case !errors.Is(err, images.ErrMany):
		return err // nobody's fault but ours
	}
	return e
}

func (d *Daemon) removeImage(_ context.Context, r control.Request, q control.ImageRemoval) (any, error) {
	if err := images.CheckName(q.Name); err != nil {
		return nil, badRequest("name", "%v", err)
	}
	gone, err := d.node.RemoveImage(q.Name, r.By)
	if err != nil {
		return nil, imageRefusal(err)
	}
	return control.ImageRemoved{Gone: gone}, nil
}
