//! Envoy's shared data.

use crate::shared::{Cas, Shared};
use proxy_wasm::hostcalls;

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Store;

impl Shared for Store {
    fn get(&self, key: &str) -> (Option<Vec<u8>>, Option<Cas>) {
        hostcalls::get_shared_data(key).unwrap_or((None, None))
    }

    fn set(&self, key: &str, value: &[u8], cas: Option<Cas>) -> bool {
        hostcalls::set_shared_data(key, Some(value), cas).is_ok()
    }
}
