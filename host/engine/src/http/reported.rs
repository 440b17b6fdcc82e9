//! What engines say that they were started with, in the words of [`Deployment`].

use serde_json::Value;

use crate::driver::Deployment;

/// The reference engine: vLLM's names, in `server_args`; what an older one lacks, in its preset.
pub(super) fn reference(info: &Value) -> Deployment {
    let number = |name: &str| {
        let of = |place: &str| positive(info.get(place)?.get(name)?);
        of("server_args").or_else(|| of("preset"))
    };
    Deployment {
        max_num_batched_tokens: number("max_num_batched_tokens"),
        max_num_seqs: number("max_num_seqs"),
        data_parallel_size: info.get("dp_size").and_then(positive),
        ..Deployment::default()
    }
}

/// SGLang: the fields of its `ServerArgs`, beside or in `server_args`.
pub(super) fn sglang(info: &Value) -> Deployment {
    let number = |name: &str| {
        let beside = info.get(name);
        let value = beside.or_else(|| info.get("server_args")?.get(name))?;
        positive(value)
    };
    let ranks = number("dp_size");
    // What the verification of a step takes is one token more than what was proposed.
    let proposed = (number("speculative_num_draft_tokens").map(|tokens| tokens - 1))
        .or_else(|| number("speculative_num_steps"));
    Deployment {
        // -1: no limit.
        max_num_batched_tokens: number("chunked_prefill_size"),
        // Of the whole server: its data-parallel ranks share it.
        max_num_seqs: number("max_running_requests")
            .map(|all| (all / ranks.unwrap_or(1).max(1)).max(1)),
        num_speculative_tokens: proposed,
        decode_context_parallel_size: number("dcp_size"),
        tensor_parallel_size: number("tp_size"),
        data_parallel_size: ranks,
    }
}

fn positive(value: &Value) -> Option<u64> {
    value.as_u64().filter(|number| *number > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_are_of_a_rank_and_what_is_not_said_is_not_known() {
        let said = json!({
            "dp_size": 4, "tp_size": 8, "chunked_prefill_size": 8192, "max_running_requests": 256,
            "speculative_num_draft_tokens": 4, "speculative_num_steps": 3,
        });
        let wanted = Deployment {
            max_num_batched_tokens: Some(8192),
            max_num_seqs: Some(64),
            num_speculative_tokens: Some(3),
            decode_context_parallel_size: None,
            tensor_parallel_size: Some(8),
            data_parallel_size: Some(4),
        };
        assert_eq!(sglang(&said), wanted);
        assert_eq!(sglang(&json!({ "server_args": said })), wanted);
        let none =
            json!({ "chunked_prefill_size": -1, "max_running_requests": null, "dp_size": "x" });
        assert_eq!(sglang(&none), Deployment::default());
        let said = json!({
            "dp_size": 2, "server_args": { "max_num_seqs": 64 },
            "preset": { "max_num_batched_tokens": 8192, "max_num_seqs": 1 },
        });
        let wanted = Deployment {
            max_num_batched_tokens: Some(8192),
            max_num_seqs: Some(64),
            data_parallel_size: Some(2),
            ..Deployment::default()
        };
        assert_eq!(reference(&said), wanted);
        assert_eq!(reference(&json!([])), Deployment::default());
    }
}
