# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154
#
# The DaemonSet of packaging/kubernetes, whose pods runc runs.

mkdir -p /var/lib/agentrun /run/agentrun
node_agent() { kubectl get pods -n agentrun -o "jsonpath={.items[0].$1}"; }
orders() { kubectl exec -n agentrun ds/node-agent -- /agentrun "$@"; }
sed -e "s#path: /usr/bin/agentrun#path: $bin/agentrun#; s#path: /var/lib/agentrun#path: $AGENTRUN_STATE_DIR#; s#path: /run/agentrun#path: $AGENTRUN_RUN_DIR#" \
	-e 's#image: busybox.*#image: localhost/agent:1#' packaging/kubernetes/node-agent.yaml | kubectl apply -f - >/dev/null
soon "the node's agent" "Running" node_agent status.phase
agent watched >/dev/null
soon "a pod" "Running" phase watched
is "it lists the node's runs" "$(run_of watched)" orders ps
soon "it serves metrics" "agentrun_runs_started_total{ring=\"3\"}" curl -s --max-time 5 "http://$(node_agent status.podIP):9465/metrics"
is "it takes orders" "exit 0" orders kill "$(run_of watched)" --reason "an order"
soon "that end a pod" "Failed 137" phase watched
is "kubectl delete" "exit 0" kubectl delete namespace agentrun
is "kubectl delete" "exit 0" gives_up
gone "nothing is left of it"
