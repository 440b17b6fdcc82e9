//! The cut of real agentic traffic that is carried inside the binary.

use crate::trace::{Trace, TraceError};

/// The embedded traffic; `data/README.md` names its source, licence and how
/// it was cut.
pub struct Cut;

const FILES: [(&str, &[u8]); 2] = [
    (
        "data/weka_trace_0274.cut.json.gz",
        include_bytes!("../data/weka_trace_0274.cut.json.gz"),
    ),
    (
        "data/weka_trace_0277.cut.json.gz",
        include_bytes!("../data/weka_trace_0277.cut.json.gz"),
    ),
];

impl Cut {
    /// Two root sessions with seven subagents: 69 requests.
    pub fn embedded() -> Result<Trace, TraceError> {
        let mut trace = Trace::default();
        for (name, bytes) in FILES {
            trace.extend(Trace::parse(name, bytes)?);
        }
        Ok(trace)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use super::*;

    /// A policy in four lines, for the model below.
    #[derive(Clone, Copy, PartialEq)]
    enum Place {
        RoundRobin,
        BySession,
        ByGroup,
    }

    /// Hit ratio and blocks computed when `copies` users play the cut over
    /// eight ranks that never evict; a prompt is cached the moment it arrives.
    fn model(place: Place, copies: usize) -> (f64, usize) {
        let trace = Cut::embedded().unwrap();
        let mut arrivals = Vec::new();
        for copy in 0..copies {
            for session in &trace.sessions {
                let root = session.parent.as_ref().unwrap_or(&session.id);
                let offset = 60.0 * copy as f64 + if root.ends_with("4") { 0.0 } else { 30.0 };
                for turn in &session.turns {
                    arrivals.push((turn.at_s + offset, copy, root, session, turn));
                }
            }
        }
        arrivals.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut ranks = vec![HashSet::new(); 8];
        let (mut next, mut homes) = (0, HashMap::new());
        let (mut total, mut hits) = (0, 0);
        for (_, copy, root, session, turn) in arrivals {
            let key = match (place, &session.parent) {
                (Place::RoundRobin, _) => format!("{next}"),
                (Place::ByGroup, Some(parent)) => format!("{copy} children of {parent}"),
                _ => format!("{copy} {}", session.id),
            };
            let rank = *homes.entry(key).or_insert_with(|| {
                next += 1;
                next % 8
            });
            let cached = &mut ranks[rank];
            total += turn.blocks.len();
            hits += turn
                .blocks
                .iter()
                .take_while(|b| cached.contains(&(copy, root, **b)))
                .count();
            cached.extend(turn.blocks.iter().map(|b| (copy, root, *b)));
        }
        (hits as f64 / total as f64, total - hits)
    }

    #[test]
    fn the_cut_has_the_figures_its_readme_gives() {
        let trace = Cut::embedded().unwrap();
        assert_eq!(trace.requests(), 69);
        assert_eq!(trace.sessions.len(), 9);
        let children = trace.sessions.iter().filter(|s| s.parent.is_some());
        assert_eq!(children.count(), 7);
    }

    #[test]
    fn stickiness_and_grouping_pay_on_the_cut() {
        let (round_robin, _) = model(Place::RoundRobin, 4);
        let (sticky, alone) = model(Place::BySession, 4);
        let (_, together) = model(Place::ByGroup, 4);
        assert!(
            sticky >= 1.67 * round_robin,
            "sticky {sticky}, round robin {round_robin}"
        );
        assert!(
            together * 100 < alone * 95,
            "together {together}, alone {alone}"
        );
    }
}
