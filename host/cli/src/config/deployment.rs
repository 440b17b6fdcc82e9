//! What the engines of a pool are started with, as far as it decides whether they can work at all.
//!
//! The one place for the rules: the file is held to them by `check`, `serve` and every reload, what
//! engines say of themselves by `check --engines` and by a warning when `serve` starts.

use super::settings::range;
use super::{Config, Dialect, Pool, Role};
use anyhow::{Result, bail};
use pointsman_engine::Deployment as Reported;
use serde::{Deserialize, Serialize};
use std::thread::available_parallelism;

/// In vLLM's words; what is not given is not looked at. Numbers are of one data-parallel rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Deployment {
    /// tokens of one forward pass. 1 to 16,777,216
    pub max_num_batched_tokens: Option<u64>,
    /// sequences that run at one time. 1 to 1,048,576
    pub max_num_seqs: Option<u64>,
    /// draft tokens that a sequence proposes in a step. 0 to 1024
    pub num_speculative_tokens: Option<u64>,
    /// ranks over which one sequence's cache is spread while it decodes. 1 to 1024
    pub decode_context_parallel_size: Option<u64>,
    /// 1 to 1024
    pub tensor_parallel_size: Option<u64>,
    /// ranks that requests are routed to. 1 to 1024
    pub data_parallel_size: Option<u64>,
    /// prefixes are saved to and loaded from a store outside of the engine
    pub kv_store: bool,
}

impl Deployment {
    /// What an engine says, and for what it does not say, what the file does.
    pub fn with(self, reported: &Reported) -> Deployment {
        let (ours, theirs) = (self, reported);
        Deployment {
            max_num_batched_tokens: theirs
                .max_num_batched_tokens
                .or(ours.max_num_batched_tokens),
            max_num_seqs: theirs.max_num_seqs.or(ours.max_num_seqs),
            num_speculative_tokens: theirs
                .num_speculative_tokens
                .or(ours.num_speculative_tokens),
            decode_context_parallel_size: (theirs.decode_context_parallel_size)
                .or(ours.decode_context_parallel_size),
            tensor_parallel_size: theirs.tensor_parallel_size.or(ours.tensor_parallel_size),
            data_parallel_size: theirs.data_parallel_size.or(ours.data_parallel_size),
            kv_store: ours.kv_store,
        }
    }

    /// Where an engine is not as the file says: the setting, here, there.
    pub fn differs(&self, reported: &Reported) -> Vec<(&'static str, u64, u64)> {
        let theirs = Deployment::default().with(reported);
        (self.numbers().into_iter().zip(theirs.numbers()))
            .filter_map(|((name, ours, ..), (_, theirs, ..))| {
                let (ours, theirs) = (ours?, theirs?);
                (ours != theirs).then_some((name, ours, theirs))
            })
            .collect()
    }

    /// Why engines of this role cannot work with it; the numbers, and what to do.
    pub fn impossible(&self, role: Role) -> Option<String> {
        let drafts = self.num_speculative_tokens.unwrap_or(0);
        if let (Some(budget), Some(seqs)) = (self.max_num_batched_tokens, self.max_num_seqs) {
            let each = drafts.saturating_add(1).saturating_mul(2);
            let wanted = each.saturating_mul(seqs);
            if budget < wanted {
                let fit = match budget / each {
                    0 => String::new(),
                    fit => format!(", or lower max_num_seqs to {fit}"),
                };
                return Some(format!(
                    "max_num_batched_tokens = {budget}: wanted at least (num_speculative_tokens + 1) · 2 · \
                     max_num_seqs = ({drafts} + 1) · 2 · {seqs} = {wanted}, or a full batch does not fit \
                     into a step: raise max_num_batched_tokens to {wanted}{fit}"
                ));
            }
        }
        let spread = self.decode_context_parallel_size.unwrap_or(1);
        if self.kv_store && spread > 1 && role != Role::Decode {
            let role = role.name();
            return Some(format!(
                "kv_store = true with decode_context_parallel_size = {spread} where role = {role:?}: a \
                 store takes whole blocks, of which each of the {spread} ranks computes a part: set \
                 decode_context_parallel_size = 1 for these engines, or kv_store = false"
            ));
        }
        if let Some(tensor) = self.tensor_parallel_size
            && tensor % spread != 0
        {
            return Some(format!(
                "decode_context_parallel_size = {spread}: wanted a divisor of tensor_parallel_size = \
                 {tensor}, among whose ranks a sequence's cache is spread: change one of them"
            ));
        }
        None
    }

    /// Name, value, and what it may be.
    fn numbers(&self) -> [(&'static str, Option<u64>, u64, u64); 6] {
        [
            (
                "max_num_batched_tokens",
                self.max_num_batched_tokens,
                1,
                1 << 24,
            ),
            ("max_num_seqs", self.max_num_seqs, 1, 1 << 20),
            (
                "num_speculative_tokens",
                self.num_speculative_tokens,
                0,
                1024,
            ),
            (
                "decode_context_parallel_size",
                self.decode_context_parallel_size,
                1,
                1024,
            ),
            ("tensor_parallel_size", self.tensor_parallel_size, 1, 1024),
            ("data_parallel_size", self.data_parallel_size, 1, 1024),
        ]
    }
}

impl Role {
    /// As in the file.
    pub fn name(self) -> &'static str {
        match self {
            Role::Serve => "serve",
            Role::Prefill => "prefill",
            Role::Decode => "decode",
        }
    }
}

impl Pool {
    /// `at` is its place in the file.
    pub(super) fn check_deployment(&self, at: usize) -> Result<()> {
        let deployment = &self.deployment;
        for (name, found, low, high) in deployment.numbers() {
            if let Some(found) = found {
                range(&format!("pool[{at}].deployment.{name}"), found, low, high)?;
            }
        }
        if let Some(why) = deployment.impossible(self.role) {
            bail!("pool[{at}].deployment: {why}");
        }
        if let Some(size) = deployment.data_parallel_size {
            for (endpoint, n) in self.endpoints.iter().zip(0..) {
                let ranks = endpoint.ranks;
                if u64::from(ranks) > size {
                    bail!(
                        "pool[{at}].endpoints[{n}].ranks = {ranks}: wanted at most {size}, as in \
                         pool[{at}].deployment.data_parallel_size: requests would go to ranks that are \
                         not there"
                    );
                }
            }
        }
        Ok(())
    }
}

impl Config {
    /// What works, and wastes what was bought.
    pub(super) fn deployment_warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let mut seqs = 0u64;
        for pool in &self.pools {
            let ranks: u64 = pool.endpoints.iter().map(|e| u64::from(e.ranks)).sum();
            let deployment = &pool.deployment;
            seqs = seqs.saturating_add(ranks.saturating_mul(deployment.max_num_seqs.unwrap_or(0)));
            let told = !matches!(pool.dialect, Dialect::Openai);
            for endpoint in pool.endpoints.iter().filter(|_| told) {
                let (ranks, name) = (endpoint.ranks, &endpoint.name);
                if let Some(size) = deployment.data_parallel_size
                    && u64::from(ranks) < size
                {
                    warnings.push(format!(
                        "endpoint {name:?}: ranks = {ranks}, while deployment.data_parallel_size = \
                         {size}: the other ranks get no requests"
                    ));
                }
            }
        }
        let threads = match self.listen.threads {
            0 => available_parallelism().map_or(1, std::num::NonZero::get),
            threads => threads,
        };
        let each = self.settings(0).limits.requests;
        let most = (each as u64).saturating_mul(threads as u64);
        if seqs > most {
            warnings.push(format!(
                "the engines run {seqs} sequences at one time, while limits.requests_per_thread = {each} on \
                 {threads} threads lets {most} requests in: raise it, or they are never full"
            ));
        }
        warnings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_enough_from_the_very_token_on() {
        let of = |budget, drafts, seqs| Deployment {
            max_num_batched_tokens: Some(budget),
            num_speculative_tokens: drafts,
            max_num_seqs: Some(seqs),
            ..Deployment::default()
        };
        for (budget, drafts, seqs, fits) in [
            (2048, Some(3), 256, true),
            (2047, Some(3), 256, false),
            (512, None, 256, true),
            (511, None, 256, false),
            (1, Some(1024), u64::MAX, false),
        ] {
            let why = of(budget, drafts, seqs).impossible(Role::Decode);
            assert_eq!(why.is_none(), fits, "{budget} {drafts:?} {seqs}: {why:?}");
        }
        let why = of(2047, Some(3), 256).impossible(Role::Serve).unwrap();
        assert!(why.contains("(3 + 1) · 2 · 256 = 2048"), "{why}");
        assert!(
            why.contains("to 2048, or lower max_num_seqs to 255"),
            "{why}"
        );
    }

    #[test]
    fn a_store_with_a_spread_cache_is_for_decode_alone() {
        let deployment = Deployment {
            kv_store: true,
            decode_context_parallel_size: Some(2),
            ..Deployment::default()
        };
        for (role, possible) in [
            (Role::Prefill, false),
            (Role::Serve, false),
            (Role::Decode, true),
        ] {
            assert_eq!(deployment.impossible(role).is_none(), possible, "{role:?}");
        }
        let alone = Deployment {
            decode_context_parallel_size: Some(1),
            ..deployment
        };
        assert_eq!(alone.impossible(Role::Prefill), None);
    }

    #[test]
    fn what_an_engine_says_counts_and_where_it_differs_is_named() {
        let stated = Deployment {
            max_num_seqs: Some(64),
            num_speculative_tokens: Some(3),
            tensor_parallel_size: Some(8),
            ..Deployment::default()
        };
        let said = Reported {
            max_num_seqs: Some(2048),
            max_num_batched_tokens: Some(8192),
            tensor_parallel_size: Some(8),
            ..Reported::default()
        };
        assert_eq!(stated.differs(&said), [("max_num_seqs", 64, 2048)]);
        assert_eq!(stated.impossible(Role::Serve), None);
        assert!(stated.with(&said).impossible(Role::Serve).is_some());
    }
}
