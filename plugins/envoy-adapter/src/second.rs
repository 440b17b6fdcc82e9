//! Where a request goes should its first target fail. Envoy tries again by itself, so the policy is asked
//! before: what it says is a decision only if Envoy used it.

use crate::cells::Wish;
use crate::rows::Change;
use crate::shared::Shared;
use crate::site::Site;
use pointsman_core::{
    Ask, Decision, Explicit, Failure, Incoming, Keys, Outcome, Piece, Route, Router, Target, Ticket,
};
use pointsman_request::Dialect;
use std::rc::Rc;

/// A second choice, should the first one fail.
pub(crate) struct Second {
    pub(crate) target: Target,
    incoming: Incoming,
    /// the policy's answer; none: the fallback's
    said: Option<Decision>,
    wishes: Vec<Wish>,
}

impl Second {
    /// Asks for the second choice. Envoy sends the same headers to both, so it must have the same rank
    /// where the engine is told; and a server that cannot be reached takes all its ranks with it.
    pub(crate) fn ask<S: Shared>(
        site: &Site<S>,
        router: &mut dyn Router,
        incoming: &Incoming,
        first: &Ticket,
        before: &[(Piece, Vec<u8>)],
        changes: &[Change],
    ) -> Option<Second> {
        let way = site.way(first.target())?;
        let tells = way.dialect != Dialect::OpenAi;
        let fleet = site.core.fleet.snapshot();
        let tried = fleet.targets().filter_map(|(target, _)| {
            let other = site.way(target)?;
            let no = other.server == way.server
                || (tells && (other.rank != way.rank || other.dialect != way.dialect));
            no.then_some(target)
        });
        let mut incoming = incoming.clone();
        incoming.attempt += 1;
        incoming.tried.extend(tried);
        let mut recorder = Recorder { router, said: None };
        site.cells.begin_draft();
        let target = site.try_decide(&mut recorder, &incoming, before, changes);
        let wishes = site.cells.end_draft();
        Some(Second {
            target: target?,
            incoming,
            said: recorder.said,
            wishes,
        })
    }

    /// Envoy used it.
    pub(crate) fn use_it<S: Shared>(self, site: &Site<S>) -> Outcome {
        site.cells.apply(&site.shared, &self.wishes);
        let mut incoming = self.incoming;
        // It is there, whoever was first with its keys meanwhile.
        incoming.explicit = Explicit::Target(self.target);
        let mut replay = Replay {
            target: self.target,
            said: self.said,
        };
        site.decide(&mut replay, &incoming).outcome
    }
}

/// Keeps what the policy says.
struct Recorder<'a> {
    router: &'a mut dyn Router,
    said: Option<Decision>,
}

impl Router for Recorder<'_> {
    fn route(&mut self, ask: &Rc<Ask>) -> Result<Decision, Failure> {
        let said = self.router.route(ask)?;
        self.said = Some(said);
        Ok(said)
    }
}

/// Says again what the policy said, of the target that Envoy took.
struct Replay {
    target: Target,
    said: Option<Decision>,
}

impl Router for Replay {
    fn route(&mut self, ask: &Rc<Ask>) -> Result<Decision, Failure> {
        let (bind, rebind, charge, reason) = match self.said {
            Some(Decision::To(route)) => (route.bind, route.rebind, route.charge, route.reason),
            _ => (Keys::NONE, Keys::NONE, None, 0),
        };
        for key in pointsman_core::Key::BINDABLE {
            if rebind.has(key) {
                ask.lookup(key);
            }
        }
        Ok(Decision::To(Route {
            target: self.target,
            bind,
            rebind,
            charge,
            reason,
        }))
    }
}
