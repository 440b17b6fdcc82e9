//! Settings are checked without starting anything.

use crate::harness::*;
use pointsman_core::{Core, Limits};
use pointsman_proxy::{Proxy, Settings, SystemClock, Witnesses};
use std::net::TcpListener;
use std::sync::Arc;

fn bind(settings: Settings) -> Result<(), String> {
    let core = Arc::new(Core::new(Limits::default(), Arc::new(SystemClock::start())));
    let bound = Proxy::bind(
        settings,
        core,
        Arc::new(Least::default()),
        Witnesses::default(),
    );
    bound.map(drop).map_err(|error| error.to_string())
}

#[tokio::test]
async fn what_cannot_be_bound_does_not_pass_the_check_for_the_same_reason() {
    let breaks: [fn(&mut Settings); 9] = [
        |s| s.session.harnesses[0].session.push("a b".to_owned()),
        |s| s.session.final_headers.push("\n".to_owned()),
        |s| s.session.body.push("no/pointer".to_owned()),
        |s| s.explicit_header = Some("ä".to_owned()),
        |s| s.pools[0].endpoints[0].url = "https://h".to_owned(),
        |s| s.pools[0].endpoints[0].ranks = 0,
        |s| s.pools[0].endpoints[0].name = "a/0".to_owned(),
        |s| s.pools.push(s.pools[0].clone()),
        |s| {
            s.pools[0].health = Some(pointsman_proxy::Health {
                path: "health".to_owned(),
                ..Default::default()
            });
        },
    ];
    for change in breaks {
        let settings = Rig::new().url("a", "http://h:1", 2).with(change).settings;
        let checked = settings.check().map_err(|error| error.to_string());
        assert!(checked.is_err());
        assert_eq!(checked, bind(settings));
    }
}

#[tokio::test]
async fn an_address_that_is_taken_passes_the_check() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let settings = (Rig::new().url("a", "http://h:1", 2))
        .with(|settings| settings.listen = address)
        .settings;
    settings.check().unwrap();
    assert!(bind(settings).is_err());
}
