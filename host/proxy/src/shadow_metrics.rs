//! What is shown of a shadow, while there is one.

use crate::metrics::{Labels, counters, gauge, seconds};
use pointsman_shadow::Report;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use std::fmt;

pub(crate) fn encode(report: &Report, encoder: &mut DescriptorEncoder) -> fmt::Result {
    let one = |name, help, n, encoder: &mut DescriptorEncoder| {
        counters(encoder, name, help, std::iter::once((Labels::new(), n)))
    };
    let name = "pointsman_shadow_decisions";
    one(
        name,
        "Decisions of the shadow policy",
        report.decided,
        encoder,
    )?;
    let (name, help) = (
        "pointsman_shadow_agreed",
        "Those that were as the live one's",
    );
    one(name, help, report.agreed, encoder)?;
    let (name, help) = (
        "pointsman_shadow_dropped",
        "Decisions that the shadow was not asked for",
    );
    one(name, help, report.dropped, encoder)?;
    let differences = (report.differences.iter()).map(|difference| {
        let labels = vec![
            ("live", difference.live.clone()),
            ("shadow", difference.shadow.clone()),
        ];
        (labels, difference.count)
    });
    let (name, help) = (
        "pointsman_shadow_differences",
        "The others, by what both said",
    );
    counters(encoder, name, help, differences)?;
    let failures = (report.failures.iter())
        .map(|(cause, &count)| (vec![("cause", (*cause).to_owned())], count));
    let (name, help) = (
        "pointsman_shadow_failures",
        "Decisions that the shadow did not make",
    );
    counters(encoder, name, help, failures)?;
    let in_flight = ConstGauge::new(i64::try_from(report.in_flight).unwrap_or(i64::MAX));
    let (name, help) = (
        "pointsman_shadow_in_flight",
        "Requests that the shadow follows",
    );
    gauge(encoder, name, help, &in_flight)?;
    let over = (f64::INFINITY, report.decided);
    let mut below = 0;
    // The library adds them up itself.
    let buckets: Vec<(f64, u64)> = (report.times.iter())
        .map(|&(ns, until)| (seconds(ns), until))
        .chain([over])
        .map(|(bound, until)| {
            let count = until - below;
            below = until;
            (bound, count)
        })
        .collect();
    encoder
        .encode_descriptor(
            "pointsman_shadow_decision_seconds",
            "Time of a decision of the shadow",
            None,
            MetricType::Histogram,
        )?
        .encode_histogram::<NoLabelSet>(seconds(report.total_ns), report.decided, &buckets, None)
}
