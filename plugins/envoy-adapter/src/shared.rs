//! What all worker threads share: Envoy's key-value store. It has compare-and-set, and neither
//! deletion nor enumeration.

/// The number of a value: it changes with every change.
pub type Cas = u32;

/// See the module.
pub trait Shared {
    /// A value and its number; none: never set.
    fn get(&self, key: &str) -> (Option<Vec<u8>>, Option<Cas>);
    /// Sets a value: if its number is still `cas`, or, without one, whatever there is. Returns whether
    /// it was set.
    fn set(&self, key: &str, value: &[u8], cas: Option<Cas>) -> bool;

    /// Changes a value until nobody else changed it meanwhile, and returns what it is then. `change`
    /// sees an empty value where there is none; none: it stays as it is.
    fn change(&self, key: &str, change: impl FnMut(Vec<u8>) -> Option<Vec<u8>>) -> Option<Vec<u8>>
    where
        Self: Sized,
    {
        self.change_seen(key, None, change)
    }

    /// The same of a value that was `seen` a moment ago, with its number: it is not asked for again
    /// unless somebody changed it meanwhile.
    fn change_seen(
        &self,
        key: &str,
        mut seen: Option<(Vec<u8>, Cas)>,
        mut change: impl FnMut(Vec<u8>) -> Option<Vec<u8>>,
    ) -> Option<Vec<u8>>
    where
        Self: Sized,
    {
        // Whoever loses has lost to somebody who won: it ends. The bound is for a store that is broken.
        for _ in 0..10_000 {
            let (value, cas) = match seen.take() {
                Some((value, cas)) => (Some(value), Some(cas)),
                None => self.get(key),
            };
            let new = change(value.unwrap_or_default())?;
            if self.set(key, &new, cas) {
                return Some(new);
            }
        }
        None
    }
}

/// A store in this process, for native tests: clones share it, as Envoy's threads do.
#[derive(Clone, Debug, Default)]
pub struct Memory(std::rc::Rc<std::cell::RefCell<Values>>);

type Values = std::collections::HashMap<String, (Vec<u8>, Cas)>;

impl Shared for Memory {
    fn get(&self, key: &str) -> (Option<Vec<u8>>, Option<Cas>) {
        match self.0.borrow().get(key) {
            Some((value, cas)) => (Some(value.clone()), Some(*cas)),
            None => (None, None),
        }
    }

    fn set(&self, key: &str, value: &[u8], cas: Option<Cas>) -> bool {
        let mut values = self.0.borrow_mut();
        let entry = values.entry(key.to_owned()).or_default();
        // As in Envoy, 0 and none mean "whatever there is".
        if cas.is_some_and(|cas| cas != 0 && cas != entry.1) {
            return false;
        }
        *entry = (value.to_vec(), entry.1 + 1);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_changed_since_it_was_seen_is_asked_for_again() {
        let memory = Memory::default();
        let add = |seen| memory.change_seen("k", seen, |value| Some([value, vec![1]].concat()));
        let seen = || {
            let (value, cas) = memory.get("k");
            Some((value?, cas?))
        };
        assert_eq!(add(seen()), Some(vec![1]), "absent");
        let before = seen();
        assert_eq!(add(seen()), Some(vec![1, 1]));
        assert_eq!(add(before), Some(vec![1, 1, 1]), "changed meanwhile");
    }
}
