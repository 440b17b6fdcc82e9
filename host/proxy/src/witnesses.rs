//! Those who see every decision, and change none.

use arc_swap::ArcSwapOption;
use pointsman_core::{Answer, Incoming, Moment, Outcome};
use pointsman_recorder::Recorder;
use pointsman_shadow::Shadow;
use std::sync::Arc;

/// See the module. A clone is the same ones.
#[derive(Clone, Debug)]
pub struct Witnesses {
    /// keeps decisions
    pub recorder: Arc<Recorder>,
    /// a second policy on the same requests, if there is one now
    pub shadow: Arc<ArcSwapOption<Shadow>>,
}

impl Default for Witnesses {
    /// Nobody looks.
    fn default() -> Self {
        Witnesses {
            recorder: Arc::new(Recorder::new(0)),
            shadow: Arc::default(),
        }
    }
}

impl Witnesses {
    /// A decision was made; `moment`: if it was taped.
    pub(crate) fn see(&self, incoming: &Incoming, outcome: &mut Outcome, moment: Option<Moment>) {
        if let Some(moment) = moment {
            self.recorder.keep(moment);
        }
        let shadow = self.shadow.load();
        let Some(shadow) = &*shadow else { return };
        if !was_asked(outcome) {
            return;
        }
        let follower = shadow.decided(incoming, Answer::of(outcome));
        if let (Outcome::Routed(ticket), Some(follower)) = (outcome, follower) {
            ticket.follow(follower);
        }
    }

    /// A session has ended.
    pub fn session_ended(&self, session: u64) {
        if let Some(shadow) = &*self.shadow.load() {
            shadow.ended(session);
        }
    }
}

/// Whether it was the policy that was asked, or its fallback, and not the host alone.
fn was_asked(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Routed(_) => true,
        Outcome::Refused(refusal) => refusal.reason.is_some() || refusal.fallback,
    }
}
