# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154
#
# Twenty replicas at once, and their end.

deployment() {
	kubectl apply -f - <<-EOF
		apiVersion: apps/v1
		kind: Deployment
		metadata: {name: $1}
		spec: {replicas: $2, selector: {matchLabels: {app: $1}}, template: {metadata: {labels: {app: $1}},
		  spec: {runtimeClassName: $3, terminationGracePeriodSeconds: 2, containers: [{name: main, image: "localhost/agent:1", command: [sh, -c, 'exec sleep 100000'],
		    resources: {limits: {memory: 32Mi, cpu: 100m}, requests: {memory: 1Mi, cpu: 1m}}}]}}}
	EOF
}
ready() { kubectl get deployment "$1" -o 'jsonpath={.status.readyReplicas}'; }

is "a Deployment" "created" deployment many 20 agentrun-ring3
soon "20 replicas" "20exit" ready many
is "are 20 runs" "20" bash -c "'$bin/agentrun' ps -q | wc -l"
is "one is killed" "exit 0" bash -c "'$bin/agentrun' kill \$('$bin/agentrun' ps -q | head -1)"
# unbroken: how many of them have never been started again
unbroken() { printf '=%s' "$(kubectl get pods -l app=many -o 'jsonpath={.items[*].status.containerStatuses[0].restartCount}' | tr ' ' '\n' | grep -cx 0)"; }
soon "and comes again" "=19exit" unbroken
soon "20 replicas" "20exit" ready many
soon "as runs" "20" bash -c "'$bin/agentrun' ps -q | wc -l"
is "agentrun kill --all" "exit 0" "$bin/agentrun" kill --all --reason "a test"
soon "all come again" "=0exit" unbroken
soon "20 replicas" "20exit" ready many
is "its end" "exit 0" kubectl delete deployment many
gone "nothing is left of 20 replicas"
