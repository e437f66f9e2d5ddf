# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154
#
# kubelet, the scheduler, the controllers and kubectl.

start_control_plane
start_kubelet
kubectl apply -f packaging/kubernetes/runtimeclasses.yaml >/dev/null
waits "the service account" 30 kubectl get serviceaccount default

# agent NAME [CLASS] [POD] [CONTAINER] [COMMAND]: a pod, with more lines of YAML's flow style for it and for its container.
agent() {
	kubectl apply -f - <<-EOF
		apiVersion: v1
		kind: Pod
		metadata: {name: $1}
		spec: {runtimeClassName: ${2-agentrun-ring3}, restartPolicy: Never, terminationGracePeriodSeconds: 2, ${3-}
		  containers: [{name: main, image: "localhost/agent:1", ${4-} command: [sh, -c, '${5-echo hello; exec sleep 1000}']}]}
	EOF
}
phase() { kubectl get pod "$1" -o 'jsonpath={.status.phase} {.status.containerStatuses[0].state.terminated.exitCode}'; }
events() { kubectl get events --field-selector "involvedObject.name=$1" -o 'jsonpath={.items[*].message}'; }
# run_of NAME: the run of a pod's first container.
run_of() {
	local id
	id=$(kubectl get pod "$1" -o 'jsonpath={.status.containerStatuses[0].containerID}')
	id=${id#containerd://}
	echo "c-${id:0:48}-$(printf %s "$id" | sha256sum | head -c 12)"
}
gives_up() { kubectl delete pod --all --wait=true --timeout=$((60 * patience))s; }

for ring in 3 2; do
	is "ring $ring: a pod" "created" agent "ring$ring" "agentrun-ring$ring"
	soon "ring $ring: it runs" "Running" phase "ring$ring"
	soon "ring $ring: kubectl logs" "hello" kubectl logs "ring$ring"
	is "ring $ring: kubectl exec" "uid=1000 gid=1000" kubectl exec "ring$ring" -- id
	is "ring $ring: its root is read-only" "Read-only file system" kubectl exec "ring$ring" -- sh -c "echo x >/bin/x"
	is "ring $ring: no token of the pod's" "No such file" kubectl exec "ring$ring" -- ls /var/run/secrets
done
is "ring 3: no process of its own" "can't fork" kubectl exec ring3 -- sh -c "ls /; exit 0"
is "ring 2: processes" "etc" kubectl exec ring2 -- sh -c "ls /; exit 0"
is "a terminal" "/dev/pts/" script -qec "kubectl exec -it ring3 -- ls -l /proc/self/fd/0" /dev/null
agent ring1 agentrun-ring1 "" "" "echo written >/srv/x && cat /srv/x && exec sleep 1000" >/dev/null
soon "ring 1: it runs, with a root that it may write" "written" kubectl logs ring1

# live control beside Kubernetes'
run=$(run_of ring3)
writes=(kubectl exec ring3 -- sh -c "ls /; exit 0")
is "agentrun elevate" "exit 0" "$bin/agentrun" elevate "$run" --to 2 --ttl "$((4 * patience))s" --reason "one build"
is "elevated: it may have processes" "etc" "${writes[@]}"
soon "demoted when the time is over" "can't fork" "${writes[@]}"
is "agentrun kill" "exit 0" "$bin/agentrun" kill "$run" --reason "a test"
soon "the pod's status shows it" "Failed 137" phase ring3
is "agentrun freeze" "exit 0" "$bin/agentrun" freeze "$(run_of ring2)"
is "agentrun thaw" "exit 0" "$bin/agentrun" thaw "$(run_of ring2)"
is "kubectl delete" "exit 0" gives_up

# ends that a pod's status shows
agent seven agentrun-ring3 "" "" "exit 7" >/dev/null
agent hungry agentrun-ring3 "" "resources: {limits: {memory: 40Mi}}," "exec tail -c 60000000 /dev/zero" >/dev/null
agent restarts agentrun-ring3 "restartPolicy: Always," >/dev/null
agent limited agentrun-ring3 "" "resources: {limits: {memory: 48Mi}}," >/dev/null
soon "one with a limit" "Running" phase limited
uid=$(kubectl get pod limited -o 'jsonpath={.metadata.uid}') # the pod's has the RuntimeClass's 16 MiB more
is "its group is in the pod's, which has a limit too" "67108864 50331648" bash -c "cat $memory/$group/kubepods/burstable/pod$uid/{,agentrun/*/}$limit | paste -sd' '"
soon "an exit code" "Failed 7" phase seven
soon "out of memory" "Failed 137" phase hungry
soon "one that is restarted" "Running" phase restarts
"$bin/agentrun" kill "$(run_of restarts)" >/dev/null
soon "is, after a kill" "1" kubectl get pod restarts -o 'jsonpath={.status.containerStatuses[0].restartCount}'
soon "and runs" "Running" phase restarts
is "kubectl delete" "exit 0" gives_up

# what Kubernetes asks of a container
probe='periodSeconds: 1, failureThreshold: 1, timeoutSeconds: '"$patience"', exec: {command'
agent ready agentrun-ring3 "" "readinessProbe: {$probe: [\"true\"]}}," >/dev/null
agent sick agentrun-ring3 "restartPolicy: Always," "livenessProbe: {$probe: [sh, -c, exit 1]}}," >/dev/null
agent late agentrun-ring3 "activeDeadlineSeconds: 3," >/dev/null
soon "a probe: ready" "trueexit" kubectl get pod ready -o 'jsonpath={.status.containerStatuses[0].ready}'
soon "a probe: started again" "exit 0" bash -c "kubectl get pod sick -o 'jsonpath={.status.containerStatuses[0].restartCount}' | grep -q '[1-9]'"
soon "activeDeadlineSeconds" "DeadlineExceeded" kubectl get pod late -o 'jsonpath={.status.reason}'
is "kubectl delete" "exit 0" gives_up

# what no ring gives, with an event that names it
refused() {
	is "$1" "created" agent "no-$1" agentrun-ring3 "${3-}" "${4-}"
	soon "$1: the event" "$2" events "no-$1"
}
refused privileged 'demands what no ring gives' "" "securityContext: {privileged: true},"
refused capability 'capability "CAP_SYS_ADMIN"' "" 'securityContext: {capabilities: {add: [SYS_ADMIN]}},'
refused hostpath 'the host'"'"'s "/etc"' 'volumes: [{name: v, hostPath: {path: /etc}}],' 'volumeMounts: [{name: v, mountPath: /data}],'
refused hostpid "the host's pid namespace" "hostPID: true,"
refused hostipc "the host's ipc namespace" "hostIPC: true,"
refused hostnetwork "the host's network namespace" "hostNetwork: true,"
refused shared "another container's pid namespace" "shareProcessNamespace: true,"
refused memory "outside the range" "" "resources: {limits: {memory: 100Gi}, requests: {memory: 1Mi}},"
refused volume 'on "/tmp/x", where the sandbox has its own' 'volumes: [{name: v, emptyDir: {}}],' 'volumeMounts: [{name: v, mountPath: /tmp/x}],'
is "kubectl delete" "exit 0" gives_up

# volumes
kubectl create configmap words --from-literal=word=configured >/dev/null
kubectl create secret generic secrets --from-literal=word=secret >/dev/null
volumes='volumes: [{name: c, configMap: {name: words}}, {name: s, secret: {secretName: secrets}}, {name: e, emptyDir: {}}],'
mounts='volumeMounts: [{name: c, mountPath: /srv/c}, {name: s, mountPath: /srv/s}, {name: e, mountPath: /data}],'
for ring in 3 2; do
	agent "volumes$ring" "agentrun-ring$ring" "$volumes" "$mounts" >/dev/null
	soon "ring $ring: volumes" "Running" phase "volumes$ring"
	is "ring $ring: a configMap" "configured" kubectl exec "volumes$ring" -- cat /srv/c/word
	is "ring $ring: a secret" "secret" kubectl exec "volumes$ring" -- cat /srv/s/word
done
is "ring 3: an emptyDir is read-only" "Read-only file system" kubectl exec volumes3 -- sh -c "echo x >/data/x"
is "ring 2: an emptyDir is its to write" "exit 0" kubectl exec volumes2 -- sh -c "echo x >/data/x"
of_another=$(kubectl get pod volumes2 -o 'jsonpath=/var/lib/kubelet/pods/{.metadata.uid}/volumes/kubernetes.io~secret/s')
refused theft "the host's \"$of_another\"" "volumes: [{name: v, hostPath: {path: \"$of_another\"}}]," 'volumeMounts: [{name: v, mountPath: /data}],'
is "kubectl delete" "exit 0" gives_up
gone "nothing is left of them"
