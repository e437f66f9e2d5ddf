# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154
#
# SIGKILL to each program between a pod and its node.

shim_of() { pgrep -f "containerd-shim-runc-v2 .*-id $(crictl pods -q --name "$1" --state ready --latest)"; }
supervisor_of() { pgrep -f "^[^ ]*/agentrun exec .*--name $(run_of "$1")"; }
holder_of() { pgrep -P "$(shim_of "$1")" -f hold-pod; }

# a pod for each: kubelet waits longer from one end to the next
other() { [[ $(phase "$1") == Running* && $(run_of "$1") != "$before" ]] && kubectl exec "$1" -- id; }
lasting() {
	agent "$1" agentrun-ring3 "restartPolicy: Always," >/dev/null
	soon "a pod" "Running" phase "$1"
	before=$(run_of "$1")
}
for victim in supervisor shim holder; do
	lasting "$victim"
	kill -9 "$("${victim}_of" "$victim")"
	soon "after a kill of its $victim it runs again" "uid=1000" other "$victim"
	soon "with one run" "exit 0" bash -c "[[ \$('$bin/agentrun' ps -q | wc -l) == 1 ]]"
	is "kubectl delete" "exit 0" gives_up
done

lasting lasting
kill -9 "$containerd"
wait "$containerd" 2>/dev/null || true
is "without containerd it goes on" "1" bash -c "'$bin/agentrun' ps -q | wc -l"
start_containerd
soon "a new containerd knows it" "uid=1000" kubectl exec lasting -- id
is "and it is the same" "$before" run_of lasting

kill -9 "$kubelet"
wait "$kubelet" 2>/dev/null || true
is "without kubelet it goes on" "1" bash -c "'$bin/agentrun' ps -q | wc -l"
start_kubelet
soon "a new kubelet knows it" "uid=1000" kubectl exec lasting -- id
is "and it is the same" "$before" run_of lasting

kill -9 "$containerd" "$(shim_of lasting)" "$kubelet"
wait "$containerd" "$kubelet" 2>/dev/null || true
start_containerd
start_kubelet
soon "after a kill of shim, containerd and kubelet it runs again" "uid=1000" other lasting
is "kubectl delete" "exit 0" gives_up
gone "nothing is left of them"
