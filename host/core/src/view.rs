//! What a policy may see while it is called: the request that it decides, or, where there is none, the
//! fleet alone.

use crate::ask::Ask;
use crate::core::LocalFleet;
use crate::fleet::Fleet;
use crate::kernel::Field;
use crate::types::{Choice, Endpoint, Load, Sums, Table, Target, Tie, Weights};
use std::rc::Rc;

/// The fleet where there is no request: in `tick` and the other events. Its placement set is every target
/// on which something may be placed, of all phases and models.
#[derive(Clone, Debug)]
pub struct Overview(pub(crate) LocalFleet);

impl Overview {
    /// The fleet as it is now; its loads are those of each moment.
    pub fn of(fleet: &Fleet) -> Overview {
        Overview(Rc::new(fleet.snapshot()))
    }

    fn field(&self) -> Field<'_> {
        Field {
            places: self.0.everywhere(),
            ledger: self.0.ledger(),
            names: self.0.names(),
            tried: &[],
        }
    }
}

/// What is before a policy. The calls of `interface fleet` are the same for both.
#[derive(Clone, Debug)]
pub enum View {
    /// a request to decide
    Request(Rc<Ask>),
    /// an event
    Fleet(Overview),
}

impl View {
    /// The request; none: there is none.
    pub fn request(&self) -> Option<&Rc<Ask>> {
        match self {
            View::Request(ask) => Some(ask),
            View::Fleet(_) => None,
        }
    }

    /// See [`Ask::least`].
    pub fn least(
        &self,
        cost: Weights,
        tie: Tie,
        except: Option<Target>,
        below: Option<u32>,
    ) -> Option<Choice> {
        match self {
            View::Request(ask) => ask.least(cost, tie, except, below),
            View::Fleet(fleet) => fleet.field().least(cost, tie, except, below),
        }
    }

    /// See [`Ask::totals`].
    pub fn totals(&self) -> Sums {
        match self {
            View::Request(ask) => ask.totals(),
            View::Fleet(fleet) => fleet.field().totals(),
        }
    }

    /// See [`Ask::columns`].
    pub fn columns(&self) -> Table {
        match self {
            View::Request(ask) => ask.columns(),
            View::Fleet(fleet) => fleet.field().columns(),
        }
    }

    /// The load of any target that exists, eligible or not.
    pub fn load_of(&self, target: Target) -> Option<Load> {
        let fleet = self.fleet();
        fleet.spec(target)?;
        Some(fleet.ledger().load(target))
    }

    /// Who a target is.
    pub fn describe(&self, target: Target) -> Option<Endpoint> {
        Some(self.fleet().spec(target)?.endpoint.clone())
    }

    fn fleet(&self) -> &LocalFleet {
        match self {
            View::Request(ask) => &ask.fleet,
            View::Fleet(Overview(fleet)) => fleet,
        }
    }
}
