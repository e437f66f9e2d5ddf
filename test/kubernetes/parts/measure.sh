# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154
#
# How long a pod takes to start and what it weighs, beside runc's: docs/kubernetes.md has the figures.

# shellcheck source=test/kubernetes/parts/cri.sh
. <(sed '/^idle=/,$d' test/kubernetes/parts/cri.sh)
n=${AGENTRUN_KUBERNETES_N-20}

# spread: median (10th–90th percentile) of the numbers on stdin.
spread() { sort -n | awk '{v[NR] = $1} END {printf "%.0f (%.0f–%.0f), n = %d\n", v[int((NR + 1) / 2)], v[int(NR * 0.1) + 1], v[int(NR * 0.9 + 0.5)], NR}'; }

one() {
	local handler=$1 id made began
	pod "$2" | sed 's/ "pid"/&/' >"$work/m.pod"
	container main "exec sleep 100000" >"$work/m.container"
	began=$(date +%s%N)
	id=$(crictl runp --runtime "$handler" "$work/m.pod")
	made=$(crictl create "$id" "$work/m.container" "$work/m.pod")
	crictl start "$made" >/dev/null
	echo $((($(date +%s%N) - began) / 1000000))
}
mkdir -p "$work/logs/m"
for i in $(seq "$n"); do
	for handler in runc agentrun-ring3; do
		one "$handler" "m$i-$handler" >>"$work/ms.$handler"
		crictl rmp -fa >/dev/null 2>&1
	done
done
for handler in runc agentrun-ring3; do echo "CRI: runp, create and start by crictl, $handler, ms: $(spread <"$work/ms.$handler")"; done

# weigh: the proportional memory of all that there is because of pods, in kB.
weigh() {
	for p in $(pgrep -f 'containerd-shim-runc|hold-pod|/pause|[/]agentrun exec|agentrun-init|^sleep 100000|agentrun-gateway'); do
		[[ $p == "$$" ]] || awk '$1 == "Pss:" {print $2}' "/proc/$p/smaps_rollup" 2>/dev/null
	done | awk '{s += $1} END {print s + 0}'
}
for handler in runc agentrun-ring3; do
	for i in $(seq 10); do one "$handler" "w$i-$handler" >/dev/null; done
	sleep 2
	echo "memory of a pod of ten (Pss of shim, pause, supervisor, agent), $handler, kB: $(($(weigh) / 10))"
	crictl rmp -fa >/dev/null 2>&1
done
find /sys/fs/cgroup -depth -path "*/$group/pod-*" -type d -exec rmdir {} +

# shellcheck source=test/kubernetes/parts/pods.sh
. <(sed '/^for ring in/,$d' test/kubernetes/parts/pods.sh)
# shellcheck source=test/kubernetes/parts/deployment.sh
. <(sed '/^is /,$d' test/kubernetes/parts/deployment.sh)
kubectl create -f - <<<'{"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "runc"}, "handler": "runc"}' >/dev/null
for i in $(seq $((n / 2))); do
	for class in runc agentrun-ring3; do
		began=$(date +%s%N)
		agent "p$i" $class "" "" "exec sleep 100000" >/dev/null
		kubectl wait --for 'jsonpath={.status.phase}=Running' "pod/p$i" --timeout 60s >/dev/null
		echo $((($(date +%s%N) - began) / 1000000)) >>"$work/kms.$class"
		kubectl delete pod "p$i" --now >/dev/null 2>&1
	done
done
for class in runc agentrun-ring3; do echo "kubectl apply until kubelet says Running, $class, ms: $(spread <"$work/kms.$class")"; done
for class in runc agentrun-ring3; do
	began=$SECONDS
	deployment fifty 50 $class >/dev/null
	until [[ $(ready fifty) == 50 ]]; do sleep 0.5; done
	sleep 2
	echo "50 pods, $class: ready after $((SECONDS - began - 2)) s, $(($(weigh) / 50)) kB each"
	began=$SECONDS
	kubectl delete deployment fifty >/dev/null
	while [[ -n $(left) ]]; do sleep 0.5; done
	echo "gone after $((SECONDS - began)) s"
done
