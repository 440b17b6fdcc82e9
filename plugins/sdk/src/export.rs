//! A policy as a component.

#[cfg(target_arch = "wasm32")]
use crate::bindings::pointsman::policy::log;
#[cfg(target_arch = "wasm32")]
use crate::{Decision, Description, Event, Policy, Request, configure, host::Imports};
use std::cell::OnceCell;

/// Where a component keeps its one policy. Used by [`crate::export!`].
#[derive(Debug)]
pub struct Slot<P>(#[allow(dead_code, reason = "natively nothing is exported")] OnceCell<P>);

impl<P> Slot<P> {
    /// Empty until the host configures it.
    #[expect(clippy::new_without_default, reason = "const, for a static")]
    pub const fn new() -> Slot<P> {
        Slot(OnceCell::new())
    }
}

#[cfg(target_arch = "wasm32")]
impl<P: Policy> Slot<P> {
    /// The host's first call, once for an instance.
    pub fn configure(&self, json: &str) -> Result<Description, String> {
        // A trap tells the host nothing but that it happened.
        std::panic::set_hook(Box::new(|panic| {
            log::write(log::Level::Error, &panic.to_string());
        }));
        let (policy, description) = configure::<P>(json)?;
        self.0.set(policy).map_err(|_| {
            "configured already: a new configuration needs a new instance".to_owned()
        })?;
        Ok(description)
    }

    /// Decides.
    #[inline]
    pub fn route(&self, request: &Request) -> Decision {
        match self.0.get() {
            Some(policy) => policy.route(request, &mut Imports),
            // No host asks before it has configured. This reason is out of range, so that one that
            // does sees a bad answer instead of a decision.
            None => Decision::Abstain(u8::MAX),
        }
    }

    /// Sees an event.
    pub fn observe(&self, event: &Event) {
        if let Some(policy) = self.0.get() {
            policy.observe(event);
        }
    }
}

/// Makes a [`Policy`](crate::Policy) the component's: `export!(MyPolicy);`, once, at the top level.
///
/// Built for another target than `wasm32` it only checks that the type is a policy, so that several
/// policies can be linked into one native program.
///
/// Misuse reads well:
///
/// ```compile_fail
/// pointsman_sdk::export!(); // export! needs the type of your policy: `export!(MyPolicy);`
/// ```
/// ```compile_fail
/// struct A;
/// struct B;
/// pointsman_sdk::export!(A, B); // a component carries one policy: …
/// ```
/// ```compile_fail
/// pointsman_sdk::export!("sticky"); // export! takes a type, …
/// ```
/// ```compile_fail
/// struct NoPolicy;
/// pointsman_sdk::export!(NoPolicy); // `NoPolicy` is not a routing policy
/// ```
#[macro_export]
macro_rules! export {
    () => {
        ::core::compile_error!("export! needs the type of your policy: `export!(MyPolicy);`");
    };
    ($policy:ty $(,)?) => {
        const _: () = {
            const fn is_a_policy<P: $crate::Policy>() {}
            is_a_policy::<$policy>();
        };

        #[cfg(target_arch = "wasm32")]
        const _: () = {
            use $crate::bindings::exports::pointsman::policy::policy as contract;

            struct Component;

            ::std::thread_local! {
                static POLICY: $crate::Slot<$policy> = const { $crate::Slot::new() };
            }

            impl contract::Guest for Component {
                fn configure(config: ::std::string::String)
                -> ::std::result::Result<contract::Description, ::std::string::String> {
                    POLICY.with(|policy| policy.configure(&config))
                }

                fn route(request: $crate::Request) -> $crate::Decision {
                    POLICY.with(|policy| policy.route(&request))
                }

                fn observe(event: contract::Event) {
                    POLICY.with(|policy| policy.observe(&event));
                }
            }

            $crate::bindings::export!(Component with_types_in $crate::bindings);
        };
    };
    ($first:ty, $($rest:tt)+) => {
        ::core::compile_error!(
            "a component carries one policy: give each policy a crate of its own with one `export!(MyPolicy);`"
        );
    };
    ($($other:tt)+) => {
        ::core::compile_error!(
            "export! takes a type, the one that implements `pointsman_sdk::Policy`: `export!(MyPolicy);`"
        );
    };
}
