//! The costs that [`crate::Host::least`] adds up.

use crate::Weights;

impl Weights {
    /// Nothing costs anything: the tie decides.
    pub const NONE: Weights = Weights {
        request: 0,
        session: 0,
        prefill_token: 0,
        context_token: 0,
    };

    /// Each outstanding request costs this much, and nothing else anything.
    pub const fn requests(cost: u64) -> Weights {
        Weights {
            request: cost,
            ..Weights::NONE
        }
    }

    /// Each bound session costs this much, and nothing else anything.
    pub const fn sessions(cost: u64) -> Weights {
        Weights {
            session: cost,
            ..Weights::NONE
        }
    }
}
