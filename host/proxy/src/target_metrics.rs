//! What is shown of each target: what is outstanding there, its condition, and how fast it answers.

use crate::metrics::{Labels, signed};
use pointsman_core::{Core, Target};
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use std::collections::BTreeMap;
use std::fmt;

/// Label and statistic.
const QUANTILES: [(&str, &str); 3] = [("0.5", "p50"), ("0.9", "p90"), ("0.99", "p99")];

/// Targets by name. One that is removed is shown until nothing is in flight there; its name may be
/// another's now, which has the higher number.
type Named<'a> = BTreeMap<&'a str, Vec<Target>>;

pub(crate) fn encode(core: &Core, encoder: &mut DescriptorEncoder) -> fmt::Result {
    let fleet = core.fleet.snapshot();
    let mut targets = Named::new();
    for (target, spec) in fleet.targets().chain(fleet.leaving()) {
        targets.entry(&spec.endpoint.name).or_default().push(target);
    }
    let mut each = |name, help, value: &dyn Fn(Target) -> i64| {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (name, targets) in &targets {
            let labels: Labels = vec![("target", (*name).to_owned())];
            let sum: i64 = targets.iter().map(|&target| value(target)).sum();
            ConstGauge::new(sum).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    };
    let ledger = fleet.ledger();
    each(
        "pointsman_target_requests",
        "Outstanding requests",
        &|target| i64::from(ledger.load(target).requests),
    )?;
    each(
        "pointsman_target_prefill_tokens",
        "Outstanding prefill tokens",
        &|target| signed(ledger.load(target).prefill_tokens),
    )?;
    each("pointsman_target_sessions", "Sessions bound", &|target| {
        i64::from(ledger.load(target).sessions)
    })?;
    each(
        "pointsman_target_up",
        "1: healthy, breaker closed",
        &|target| {
            let standing = fleet.standing(target);
            i64::from(standing.is_some_and(|s| s.healthy && s.closed && !s.removed))
        },
    )?;
    latencies(core, &targets, encoder)
}

/// Of those targets of which somebody wants to know, and that have answered lately.
fn latencies(core: &Core, targets: &Named, encoder: &mut DescriptorEncoder) -> fmt::Result {
    let now_ms = core.now_ms();
    let mut each = |kind: &str, help: &str| {
        let name = format!("pointsman_target_{kind}_seconds");
        let mut family = encoder.encode_descriptor(&name, help, None, MetricType::Gauge)?;
        for (target, numbers) in targets {
            for (quantile, stat) in QUANTILES {
                let stat = format!("{kind}_ms_{stat}");
                // Only what is part of the fleet is measured: one at the most of each name.
                let found =
                    (numbers.iter()).find_map(|&target| core.measured.stat(target, now_ms, &stat));
                let Some(ms) = found else { continue };
                let labels: Labels = vec![
                    ("target", (*target).to_owned()),
                    ("quantile", quantile.to_owned()),
                ];
                ConstGauge::new(ms / 1000.0).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    };
    each(
        "ttft",
        "From sending a request to the first bytes of its stream, over the last 5 s",
    )?;
    each("itl", "Between the events of a stream, over the last 5 s")
}
