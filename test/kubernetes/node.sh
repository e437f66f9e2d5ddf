# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154,SC2034
#
# A Kubernetes of one node, for run.sh, in mount, network and pid namespaces of its own: folders on tmpfs mounts, an address on a cable that leads
# nowhere, processes that end with the first. Only cgroups are the machine's: all are below $group.

# Where a group's memory is limited.
memory=/sys/fs/cgroup/memory limit=memory.limit_in_bytes
[[ ! -e /sys/fs/cgroup/cgroup.controllers ]] || memory=/sys/fs/cgroup limit=memory.max

# cover FOLDER: with an empty one, of AGENTRUN_KUBERNETES_IN where that is given: Linux before 6.3 maps no owners on tmpfs.
cover() {
	if [[ -z ${AGENTRUN_KUBERNETES_IN-} ]]; then
		mount -t tmpfs tmpfs "$1"
	else
		mount --bind "$(mktemp -d "$AGENTRUN_KUBERNETES_IN/XXXXXX")" "$1"
		chmod 0755 "$1"
	fi
}

# own_places covers the folders of the machine's that a node writes.
own_places() {
	mount --make-rprivate /
	cover "$work"
	mkdir -p "$work"/over/{etc,lib,etc.work,lib.work} "$work/logs"
	mount -t overlay -o "lowerdir=/etc,upperdir=$work/over/etc,workdir=$work/over/etc.work" etc /etc
	mount -t overlay -o "lowerdir=/var/lib,upperdir=$work/over/lib,workdir=$work/over/lib.work" lib /var/lib
	mkdir -p /var/lib/kubelet /etc/agentrun /etc/cni/net.d
	for at in /run /var/log; do mount -t tmpfs tmpfs "$at"; done
	cover /var/lib/kubelet
	for at in "$work" /run /var/lib/kubelet; do mount --make-rshared "$at"; done
	rm -f /etc/cni/net.d/*
	mkdir /run/lock
	ip link set lo up
	ip link add uplink type veth peer name far
	ip address add 192.0.2.2/24 dev uplink
	ip link set uplink up
	ip link set far up
	ip route add default via 192.0.2.1
	echo 1 >/proc/sys/net/ipv4/ip_forward
}

# groups lists this test's cgroups: one in each hierarchy.
groups() { find /sys/fs/cgroup -maxdepth 2 -type d -name "$group"; }

make_groups() {
	for at in /sys/fs/cgroup/*/cgroup.procs /sys/fs/cgroup/cgroup.procs; do
		[[ -e $at && ! -L ${at%/*} ]] || continue
		mkdir -p "${at%/*}/$group"
		[[ ! -e ${at%/*}/cpuset.cpus ]] || for of in cpus mems; do cat "${at%/*}/cpuset.$of" >"${at%/*}/$group/cpuset.$of"; done
	done
	[[ $limit != memory.max ]] || sed 's/[^ ]*/+&/g' "$memory/$group/cgroup.controllers" >"$memory/$group/cgroup.subtree_control"
}

# image NAME ROOT COMMAND: an archive as docker's for a folder, imported.
image() {
	local at=$work/image
	mkdir "$at"
	tar -C "$2" -cf "$at/layer.tar" .
	printf '{"architecture":"amd64","os":"linux","config":{"Cmd":["%s"],"Env":["PATH=/bin"]},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
		"$3" "$(sha256sum "$at/layer.tar" | cut -d' ' -f1)" >"$at/config.json"
	printf '[{"Config":"config.json","RepoTags":["%s"],"Layers":["layer.tar"]}]' "$1" >"$at/manifest.json"
	tar -C "$at" -cf "$at.tar" .
	ctr -n k8s.io images import "$at.tar" >/dev/null
	rm -r "$at" "$at.tar"
}

# waits NAME SECONDS COMMAND…: until it succeeds.
waits() {
	local name=$1 end=$((SECONDS + $2 * patience))
	shift 2
	until "$@" >/dev/null 2>&1; do
		((SECONDS < end)) || { echo "$name: not there in time" >&2; return 1; }
		sleep 0.1
	done
}

start_containerd() {
	containerd -c /etc/containerd/config.toml >>"$work/logs/containerd" 2>&1 &
	containerd=$!
	waits containerd 30 ctr version
	waits "containerd's CRI" 30 crictl info
}

# node_files writes what an operator of such a node writes: docs/kubernetes.md.
node_files() {
	mkdir -p /etc/containerd
	cat >/etc/containerd/config.toml <<-EOF
		version = 3
		root = "$work/containerd"
		state = "/run/containerd"
		imports = ["/etc/containerd/agentrun.toml"]
		[plugins.'io.containerd.cri.v1.images']
		  [plugins.'io.containerd.cri.v1.images'.pinned_images]
		    sandbox = "localhost/pause:1"
		[plugins.'io.containerd.cri.v1.runtime']
		  disable_apparmor = true
		  restrict_oom_score_adj = true
		  [plugins.'io.containerd.cri.v1.runtime'.cni]
		    bin_dirs = ["/usr/lib/cni"]
	EOF
	cp packaging/kubernetes/containerd.toml /etc/containerd/agentrun.toml
	sed -i "s#/usr/bin/agentrun#$bin/agentrun#" /etc/containerd/agentrun.toml
	cat >/etc/cni/net.d/10-pods.conflist <<-EOF
		{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "ptp", "ipMasq": false,
		 "ipam": {"type": "host-local", "dataDir": "/run/cni", "ranges": [[{"subnet": "198.51.100.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
	EOF
	cp packaging/kubernetes/oci-mounts /etc/agentrun/oci-mounts
	cp packaging/kubernetes/config.yaml /etc/agentrun/config.yaml
	cat >/etc/crictl.yaml <<-EOF
		runtime-endpoint: unix:///run/containerd/containerd.sock
		image-endpoint: unix:///run/containerd/containerd.sock
		timeout: $((60 * patience))
	EOF
}

images() {
	local root=$work/root name
	mkdir -p "$root"/{bin,etc,tmp,run,proc,dev,sys,data,srv}
	cp /bin/busybox "$root/bin/"
	for name in sh true sleep id cat ls env echo mkdir mount head tail nc wget hostname httpd seq; do ln -s busybox "$root/bin/$name"; done
	image localhost/agent:1 "$root" /bin/sh
	mkdir -p "$work/pause"
	cp .cache/kubernetes/pause "$work/pause/"
	image localhost/pause:1 "$work/pause" /pause
}

start_control_plane() {
	local at=$work/control
	mkdir -p "$at"
	openssl genrsa -out "$at/accounts.key" 2048 2>/dev/null
	echo 'test-token,admin,admin,"system:masters"' >"$at/tokens"
	cat >"$KUBECONFIG" <<-EOF
		{"apiVersion": "v1", "kind": "Config", "current-context": "test",
		 "clusters": [{"name": "test", "cluster": {"server": "https://127.0.0.1:6443", "insecure-skip-tls-verify": true}}],
		 "users": [{"name": "admin", "user": {"token": "test-token"}}],
		 "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}]}
	EOF
	etcd --data-dir "$at/etcd" --unsafe-no-fsync --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
		--listen-peer-urls http://127.0.0.1:2380 >"$work/logs/etcd" 2>&1 &
	kube-apiserver --etcd-servers http://127.0.0.1:2379 --advertise-address 192.0.2.2 --service-cluster-ip-range 203.0.113.0/24 --cert-dir "$at/certs" \
		--kubelet-preferred-address-types InternalIP --authorization-mode RBAC --token-auth-file "$at/tokens" --service-account-issuer https://kubernetes.default.svc --allow-privileged \
		--service-account-key-file "$at/accounts.key" --service-account-signing-key-file "$at/accounts.key" >"$work/logs/apiserver" 2>&1 &
	waits apiserver 60 kubectl get --raw /readyz
	kube-controller-manager --kubeconfig "$KUBECONFIG" --leader-elect=false --flex-volume-plugin-dir /var/lib/kubelet/volume-plugins --service-account-private-key-file "$at/accounts.key" \
		--root-ca-file "$at/certs/apiserver.crt" >"$work/logs/controller-manager" 2>&1 &
	kube-scheduler --kubeconfig "$KUBECONFIG" --leader-elect=false >"$work/logs/scheduler" 2>&1 &
}

# start_kubelet gives it settings of the kernel's that look as it wants them: it would change the machine's.
start_kubelet() {
	cat >"$work/kubelet.yaml" <<-EOF
		apiVersion: kubelet.config.k8s.io/v1beta1
		kind: KubeletConfiguration
		authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
		authorization: {mode: AlwaysAllow}
		cgroupDriver: cgroupfs
		cgroupRoot: /$group
		failCgroupV1: false
		failSwapOn: false
		protectKernelDefaults: true
		evictionHard: {memory.available: 100Mi}
		containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
		syncFrequency: 10s
		volumePluginDir: /var/lib/kubelet/volume-plugins
	EOF
	# shellcheck disable=SC2016 # of the other shell
	unshare --mount --propagation unchanged bash -c '
		mount --make-private /proc
		for kv in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
			at=$0/settings/${kv%=*}
			mkdir -p "${at%/*}"
			echo "${kv#*=}" >"$at"
			mount --bind "$at" "/proc/sys/${kv%=*}"
		done
		exec kubelet "$@"' "$work" --config "$work/kubelet.yaml" --kubeconfig "$KUBECONFIG" --hostname-override node --node-ip 192.0.2.2 \
		>>"$work/logs/kubelet" 2>&1 &
	kubelet=$!
	waits "the node" 90 bash -c "kubectl get node node | grep -q ' Ready '"
}
