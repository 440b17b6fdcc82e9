//! The filter, as the resource that Envoy discovers: what a swap of the policy replaces.

use super::{FILTER, quoted};
use crate::policies::digest;
use anyhow::Result;
use pointsman_envoy_adapter::Config;
use std::path::Path;

/// See the module.
pub struct Filter<'a> {
    /// the fused module; Envoy takes a new one only under a new name
    pub module: &'a Path,
    pub config: &'a Config,
}

impl Filter<'_> {
    /// The file.
    pub fn yaml(&self) -> Result<String> {
        let config = serde_json::to_string_pretty(self.config)?;
        let digest = digest(config.as_bytes());
        let digest = digest.get(..16).unwrap_or(&digest);
        let module = quoted(&self.module.to_string_lossy());
        let indented = config.replace('\n', "\n          ");
        Ok(format!(
            r#"# The policy in Envoy. Envoy follows this file: rename another one over it, and new requests are
# decided by that. One that does not start is refused, and this one goes on.
version_info: "{digest}"
resources:
- "@type": type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig
  name: {FILTER}
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm
    config:
      name: {FILTER}
      root_id: {FILTER}
      configuration:
        "@type": type.googleapis.com/google.protobuf.StringValue
        value: |
          {indented}
      vm_config:
        # The same in every version: sessions and loads are kept under it, and survive a swap.
        vm_id: {FILTER}
        runtime: envoy.wasm.runtime.v8
        # Another one for another configuration: a policy is configured once in a VM.
        configuration:
          "@type": type.googleapis.com/google.protobuf.StringValue
          value: "{digest}"
        code: {{ local: {{ filename: {module} }} }}
      # Without it a request whose body is waited for hangs.
      allow_on_headers_stop_iteration: true
      # A policy that traps costs its request a 503, and its worker thread's requests in flight; the
      # next one finds a new VM. Envoy's default would answer 503 from then on.
      failure_policy: FAIL_RELOAD
      reload_config: {{ backoff: {{ base_interval: 0.1s }} }}
"#
        ))
    }
}
