//! What a policy may ask while it decides.

use crate::{Binding, Choice, Endpoint, Key, Level, Load, Sums, Table, Target, Tie, Weights};

/// The host, as a policy sees it during [`crate::Policy::route`], and, with less to see, in
/// [`crate::Policy::observe`]: see `pointsman_sdk::observing`.
///
/// Implemented by the imports of the component and, with the feature `native`, by the host's own
/// state machines: a policy that is generic over it decides the same on both.
pub trait Host {
    /// Where a key of this request is bound. None: not bound, not an identity of this request, or not
    /// one of [`crate::Policy::keys`]. The session's own binding is in the request already.
    fn lookup(&mut self, key: Key) -> Option<Binding>;

    /// The lowest score in the placement set, without `except`, among those with fewer than `below`
    /// outstanding requests. With all weights 0 the tie decides: [`Tie::Turn`] is then a round-robin,
    /// [`Tie::Hash`] rendezvous hashing.
    fn least(
        &mut self,
        cost: Weights,
        tie: Tie,
        except: Option<Target>,
        below: Option<u32>,
    ) -> Option<Choice>;

    /// Sums over the placement set.
    fn totals(&mut self) -> Sums;

    /// The load of any target that exists, eligible or not.
    fn load_of(&mut self, target: Target) -> Option<Load>;

    /// The placement set as columns, for a policy that scores by itself. Costs more than
    /// [`Host::least`], and grows with the fleet.
    fn columns(&mut self) -> Table;

    /// Who a target is: name, URL, rank, labels. Strings: not for every request.
    fn describe(&mut self, target: Target) -> Option<Endpoint>;

    /// 0, 1, 2, …: each call of a lane gets another number.
    fn ticket(&mut self, lane: u32) -> u64;

    /// The number in a cell; 0 if never set.
    fn get(&mut self, cell: u64) -> u64;

    /// Sets a cell if it holds `expected`; returns what it held.
    fn swap(&mut self, cell: u64, expected: u64, new: u64) -> u64;

    /// The time of this decision in ms; never goes back.
    fn now_ms(&mut self) -> u64;

    /// The most tokens the client wants back.
    fn max_output_tokens(&mut self) -> Option<u32>;

    /// A header of the raw request.
    fn header(&mut self, name: &str) -> Option<String>;

    /// A value of the raw body by JSON pointer; strings as they are, the rest as JSON text.
    fn body(&mut self, pointer: &str) -> Option<String>;

    /// A line in the host's log. Linked natively: warnings and errors, on standard error.
    fn log(&mut self, level: Level, message: &str);
}

/// The host in [`crate::Policy::observe`], where there is no request: the placement set is every target on
/// which some request may be placed, of all phases and models; no key is bound, no header there, and the
/// time is 0 (a tick brings it). Component only: write what a tick does for any `&mut impl Host`, and a test
/// gives it `Bench::observing` instead.
#[cfg(target_arch = "wasm32")]
pub fn observing() -> impl Host {
    Imports
}

/// The imports of the component.
#[cfg(target_arch = "wasm32")]
#[derive(Debug)]
pub(crate) struct Imports;

#[cfg(target_arch = "wasm32")]
mod imports {
    use super::{
        Binding, Choice, Endpoint, Host, Imports, Key, Level, Load, Sums, Table, Target, Tie,
        Weights,
    };
    use crate::bindings::pointsman::policy::{affinity, facts, fleet, log, state};

    impl Host for Imports {
        fn lookup(&mut self, key: Key) -> Option<Binding> {
            affinity::lookup(key)
        }

        fn least(
            &mut self,
            cost: Weights,
            tie: Tie,
            except: Option<Target>,
            below: Option<u32>,
        ) -> Option<Choice> {
            fleet::least(cost, tie, except, below)
        }

        fn totals(&mut self) -> Sums {
            fleet::totals()
        }

        fn load_of(&mut self, target: Target) -> Option<Load> {
            fleet::load_of(target)
        }

        fn columns(&mut self) -> Table {
            fleet::columns()
        }

        fn describe(&mut self, target: Target) -> Option<Endpoint> {
            fleet::describe(target)
        }

        fn ticket(&mut self, lane: u32) -> u64 {
            state::ticket(lane)
        }

        fn get(&mut self, cell: u64) -> u64 {
            state::get(cell)
        }

        fn swap(&mut self, cell: u64, expected: u64, new: u64) -> u64 {
            state::swap(cell, expected, new)
        }

        fn now_ms(&mut self) -> u64 {
            facts::now_ms()
        }

        fn max_output_tokens(&mut self) -> Option<u32> {
            facts::max_output_tokens()
        }

        fn header(&mut self, name: &str) -> Option<String> {
            facts::header(name)
        }

        fn body(&mut self, pointer: &str) -> Option<String> {
            facts::body(pointer)
        }

        fn log(&mut self, level: Level, message: &str) {
            log::write(level, message);
        }
    }
}
