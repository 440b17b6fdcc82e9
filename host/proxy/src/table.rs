//! One thread's connections to every engine, as the engines come and go.

use crate::engines::{Engine, Engines};
use crate::metrics::Tally;
use crate::settings::Settings;
use crate::upstream::Upstream;
use pointsman_core::Target;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::watch;

/// See the module.
pub(crate) struct Table {
    rows: RefCell<Rows>,
    tally: Arc<Tally>,
}

struct Rows {
    follows: watch::Receiver<Arc<Engines>>,
    engines: Arc<Engines>,
    /// in the order of `engines`
    upstreams: Vec<Rc<Upstream>>,
}

impl Table {
    pub(crate) fn new(
        mut follows: watch::Receiver<Arc<Engines>>,
        settings: &Settings,
        tally: Arc<Tally>,
    ) -> Table {
        let engines = follows.borrow_and_update().clone();
        let upstreams = (engines.iter())
            .map(|engine| Rc::new(Upstream::new(engine.clone(), settings, tally.clone())))
            .collect();
        Table {
            rows: RefCell::new(Rows {
                follows,
                engines,
                upstreams,
            }),
            tally,
        }
    }

    /// Takes notice of other engines. Costs one load if they are the same.
    pub(crate) fn follow(&self, settings: &Settings) {
        let changed = self.rows.borrow().follows.has_changed();
        if changed.unwrap_or(false) {
            self.rows.borrow_mut().renew(settings, &self.tally);
        }
    }

    /// The connections to a target's engine.
    pub(crate) fn of(&self, target: Target, settings: &Settings) -> Option<Rc<Upstream>> {
        let found = self.rows.borrow().of(target);
        found.or_else(|| {
            // It came after this thread last looked.
            self.follow(settings);
            self.rows.borrow().of(target)
        })
    }

    /// Closes what was idle for too long.
    pub(crate) fn sweep(&self) {
        let rows = self.rows.borrow();
        rows.upstreams.iter().for_each(|upstream| upstream.sweep());
    }
}

impl Rows {
    fn of(&self, target: Target) -> Option<Rc<Upstream>> {
        let place = self.engines.place_of(target)?;
        self.upstreams.get(place).cloned()
    }

    /// An engine that stays keeps its connections; also where something else is said of the server.
    fn renew(&mut self, settings: &Settings, tally: &Arc<Tally>) {
        let engines = self.follows.borrow_and_update().clone();
        let before = std::mem::take(&mut self.upstreams);
        let same: HashMap<*const Engine, &Rc<Upstream>> =
            before.iter().map(|u| (Arc::as_ptr(&u.engine), u)).collect();
        let by_server: HashMap<_, &Rc<Upstream>> = (before.iter())
            .map(|u| (Arc::as_ptr(&u.engine.server), u))
            .collect();
        self.upstreams = (engines.iter())
            .map(|engine| match same.get(&Arc::as_ptr(engine)) {
                Some(&upstream) => upstream.clone(),
                None => {
                    let upstream = Upstream::new(engine.clone(), settings, tally.clone());
                    if let Some(was) = by_server.get(&Arc::as_ptr(&engine.server)) {
                        upstream.inherit(was);
                    }
                    Rc::new(upstream)
                }
            })
            .collect();
        self.engines = engines;
    }
}
