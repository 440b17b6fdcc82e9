# Cuts one raw weka trace down to the opening of its root session and of each
# subagent. Run as the README beside this file says.
#   $root      turns of the root session to keep, from the first
#   $subagent  turns of every subagent to keep, from the first

def turn: {t, type, model, in, out, hash_ids, api_time, think_time};

{
  id, block_size, hash_id_scope,
  requests: [
    foreach .requests[] as $r (
      0;
      if $r.type == "subagent" then . else . + 1 end;
      if $r.type == "subagent" then
        $r | {t, type, agent_id, subagent_type, requests: [.requests[:$subagent][] | turn]}
      elif . <= $root then
        $r | turn
      else empty end
    )
  ]
}
