#!/bin/bash
# Process 1 of a node: of its own mounts, network, processes and host name, all of which vanish when it ends.
# Arguments: the cluster's folder, the cache's folder, a control group, kubelet, kube-proxy.
set -euo pipefail
folder=$1 cache=$2 group=$3 kubelet=$4 kube_proxy=$5
echo 0 >"$group/cgroup.procs"

# containerd, the CNI plugins and the kubelet keep state in fixed places. Here these are empty, or in the cluster's
# folder, which must stay where it is even if it is below one of them.
exec 3<"$cache"
mount -t proc proc /proc
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/lib
mkdir -p "$cache"
mount --no-canonicalize --bind /proc/self/fd/3 "$cache"
exec 3<&-
for place in /var/lib/containerd /var/lib/kubelet /var/log; do
    mkdir -p "$folder/node/${place##*/}" "$place"
    mount --bind "$folder/node/${place##*/}" "$place"
done
mount --make-rshared /

until [[ -e $folder/node/start ]]; do sleep 0.02; done # the node's files and its link are there
read -r name address gateway <"$folder/node/start"
hostname "$name"
echo 1 >/proc/sys/net/ipv4/ip_forward
ip link set lo up
ip link set eth0 up
ip address add "$address/24" dev eth0
ip route add default via "$gateway"

containerd --config "$folder/node/containerd.toml" >>"$folder/logs/containerd.log" 2>&1 &
until [[ -S /run/containerd/containerd.sock ]]; do # the kubelet gives up without it
    kill -0 $!
    sleep 0.02
done
"$kubelet" --config "$folder/node/kubelet.yaml" --kubeconfig "$folder/kubeconfigs/system_node_$name.yaml" \
    --hostname-override "$name" --node-ip "$address" >>"$folder/logs/kubelet.log" 2>&1 &
"$kube_proxy" --config "$folder/node/kube-proxy.yaml" --hostname-override "$name" >>"$folder/logs/kube-proxy.log" 2>&1 &
wait -n # each runs to the end: if one stops, the node does
