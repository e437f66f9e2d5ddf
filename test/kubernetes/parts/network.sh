# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154
#
# The way out: the node's gateway.yaml says where, and the pod's network bounds it.

mkdir -p "$work/www"
echo "from outside" >"$work/www/index.html"
for port in 80 8081; do busybox httpd -p "192.0.2.2:$port" -h "$work/www"; done
printf 'egress:\n  allow: ["192.0.2.2:80"]\n' >/etc/agentrun/gateway.yaml
for ring in 3 2; do agent "out$ring" "agentrun-ring$ring" >/dev/null; done
for ring in 3 2; do soon "a pod" "Running" phase "out$ring"; done
# asks POD PORT: Debian's static wget needs libraries of the host's, so by nc
asks() { printf 'GET / HTTP/1.0\r\n\r\n' | kubectl exec -i "$1" -- nc -w 5 192.0.2.2 "$2" | grep "from outside" || echo nothing; }
is "ring 2: what is allowed is reached" "from outside" asks out2 80
is "ring 2: what isn't allowed is not" "nothing" asks out2 8081
is "ring 3: nothing is" "nothing" asks out3 80
space=$(crictl inspectp "$(crictl pods -q --name out2 --state ready)" | grep -o 'cni-[0-9a-f-]*' | head -1)
is "the pod's network is closed" "exit 0" ip -n "$space" route add prohibit 192.0.2.2/32
is "ring 2: then not even what is allowed" "nothing" asks out2 80
rm /etc/agentrun/gateway.yaml
is "kubectl delete" "exit 0" gives_up
gone "nothing is left of them"
