#!/usr/bin/env bash
# Two machines on paper: two network namespaces joined by a wire of 1 Gbit/s, and a process of limpid in each. Root and
# Open MPI are needed, and a limpid that was built with --features mpi:
#
#   reference/ranks_network.sh target/release/limpid          the same bytes over the wire; the wire is cut: an error,
#   no hang reference/ranks_network.sh target/release/limpid gpt2     and what of GPT-2's all-reduce hides behind
#   computing
set -euo pipefail
limpid=$(realpath "$1")
folder=$(mktemp -d)
cd "$folder"
end() {
  pkill -f "$folder" || true
  for node in a b; do ip netns del "limpid-$node" 2>/dev/null || true; done
  rm -rf "$folder"
}
trap end EXIT
for node in a b; do
  ip netns add "limpid-$node"
  ip -n "limpid-$node" link set lo up
done
ip link add wire-a netns limpid-a type veth peer name wire-b netns limpid-b
for node in a b; do
  ip -n "limpid-$node" address add "10.77.0.$([ $node = a ] && echo 1 || echo 2)/24" dev "wire-$node"
  ip -n "limpid-$node" link set "wire-$node" up
done
wire() { # rate of both directions
  for node in a b; do
    tc -n "limpid-$node" qdisc replace dev "wire-$node" root tbf rate "$1" burst 256kb latency 50ms
  done
}
wire 1gbit
# what mpirun starts on another machine by ssh
cat >agent <<'AGENT'
#!/usr/bin/env bash
[ "$1" = 10.77.0.1 ] && node=a || node=b
shift
exec ip netns exec "limpid-$node" unshare --uts bash -c "hostname node-$node; $*"
AGENT
chmod +x agent
many() {
  ip netns exec limpid-a unshare --uts bash -c 'hostname node-a; exec "$@"' - \
    mpirun --allow-run-as-root -n 2 -H 10.77.0.1:1,10.77.0.2:1 --bind-to none --mca plm_rsh_agent "$folder/agent" \
    --mca oob_tcp_keepalive_time 3 --mca oob_tcp_keepalive_intvl 1 --mca oob_tcp_keepalive_probes 3 \
    --mca btl tcp,self --mca btl_tcp_if_include 10.77.0.0/24 --mca oob_tcp_if_include 10.77.0.0/24 "$@"
}
# a schedule that does not depend on the number of steps, which a resumed run may then change
train="train --accumulate 2 --threads 1 --sample 0 --schedule constant --warmup-steps 0"

echo "== the same bytes over the wire"
"$limpid" $train --steps 20 --out one >/dev/null 2>&1
many "$limpid" $train --steps 20 --out two >/dev/null 2>&1
cmp one/model.safetensors two/model.safetensors && echo "20 steps: two machines and one process have the same weights"

if [ "${2:-}" = gpt2 ]; then
  echo "== what of GPT-2's all-reduce hides, B = 4, T = 256, 1 Gbit/s"
  many "$limpid" $train --preset gpt2 --tokenizer gpt2 --data builtin:stories:200K --context 256 \
    --batch-size 4 --steps 4 \
    --preflight=false --eval-tokens 256 --out gpt2 >/dev/null 2>&1
  awk -F'[:,]' '/train_loss/ && !/"step":1,/ { for (i = 1; i < NF; i++) { if ($i ~ /all_reduce_seconds/) seen += $(i + 1)
    if ($i ~ /hidden/) hidden += $(i + 1) } steps++ }
    END { printf "a step: %.2f s seen, %.2f s hidden: %.0f %% of it hides\n",
      seen / steps, hidden / steps, 100 * hidden / (seen + hidden) }' gpt2/metrics.jsonl
fi

echo "== the wire is cut"
many "$limpid" $train --steps 100000 --save-every 5 --timeout 20 --out cut >said 2>&1 &
job=$!
until [ -e cut/state/last.safetensors ]; do sleep 0.2; done
ip -n limpid-a link set wire-a down
began=$SECONDS
wait $job && { echo "it went on"; exit 1; }
echo "all ended $((SECONDS - began)) s after the cut:"
grep -am1 "^error\|lost communication" said
steps=$(($(wc -l <cut/metrics.jsonl) + 5))
"$limpid" train --resume cut --steps $steps --sample 0 >resumed 2>&1 || { cat resumed; exit 1; }
grep -a "after step" resumed
