use crate::engines::Checked;
use crate::error::Error;
use crate::keeper;
use crate::metrics::{Scrape, Tally};
use crate::reload::{Reloader, Roster};
use crate::settings::Settings;
use crate::site::{Shared, Site};
use crate::thread;
use crate::witnesses::Witnesses;
use http::header::HeaderName;
use pointsman_core::{Core, Failure, Source, hash_text};
use pointsman_request::{BadSetting, Identifier, Learner};
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use tokio::sync::{mpsc, watch};
use tokio::task::LocalSet;

const BACKLOG: i32 = 4096;

/// The data plane, bound to its addresses and not yet serving.
pub struct Proxy {
    shared: Arc<Shared>,
    tallies: Vec<Arc<Tally>>,
    /// one per thread, all of one address
    listeners: Vec<TcpListener>,
    admin: TcpListener,
    admin_routes: axum::Router,
    addresses: (SocketAddr, SocketAddr),
}

impl std::fmt::Debug for Proxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (f.debug_struct("Proxy").field("addresses", &self.addresses)).finish_non_exhaustive()
    }
}

impl Proxy {
    /// Checks the settings, makes the endpoints part of the core's fleet, and takes the addresses.
    pub fn bind(
        settings: Settings,
        core: Arc<Core>,
        source: Arc<dyn Source>,
        witnesses: Witnesses,
    ) -> Result<Proxy, Error> {
        let threads = match settings.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        };
        let (identifier, explicit_header) = names(&settings)?;
        let (listeners, data_address) = listen_each("listen", settings.listen, threads)?;
        let (admin, admin_address) = listen("admin", settings.admin, false)?;
        let engines = Roster::enrol(&settings.pools, &core.fleet)?;
        Ok(Proxy {
            shared: Arc::new(Shared {
                route: hash_text(&settings.route),
                identifier,
                explicit_header,
                engines,
                learner: Learner::default(),
                core,
                source,
                witnesses,
                settings,
            }),
            tallies: (0..threads).map(|_| Arc::default()).collect(),
            listeners,
            admin,
            admin_routes: axum::Router::new(),
            addresses: (data_address, admin_address),
        })
    }

    /// Serves these too where operators come in, and only there. They know the client's address
    /// (`ConnectInfo<SocketAddr>`), and share no path with `/metrics` and `/healthz`.
    #[must_use]
    pub fn with_admin_routes(mut self, routes: axum::Router) -> Proxy {
        self.admin_routes = self.admin_routes.merge(routes);
        self
    }

    /// Threads that serve requests.
    pub fn workers(&self) -> usize {
        self.tallies.len()
    }

    /// Replaces its endpoints later.
    pub fn reloader(&self) -> Reloader {
        Reloader::new(self.shared.clone())
    }

    /// Counts a failure of the policy that no request met, beside those that one did.
    pub fn failures(&self) -> impl Fn(&str, &Failure) + Send + use<> {
        let tally = self.tallies.first().cloned().unwrap_or_default();
        move |policy, failure| tally.policy_failure(policy, failure.cause())
    }

    /// Where clients come in.
    pub fn data_addr(&self) -> SocketAddr {
        self.addresses.0
    }

    /// Where operators come in.
    pub fn admin_addr(&self) -> SocketAddr {
        self.addresses.1
    }

    /// Serves until `shutdown`, then accepts nothing more and lets requests in flight finish, for
    /// [`Timeouts::shutdown`](crate::Timeouts::shutdown) at most.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), Error> {
        let (stop, stopping) = watch::channel(false);
        let (stop_keeper, keeper_stopping) = watch::channel(false);
        let (ended, mut ends) = mpsc::unbounded_channel();
        let scrape = Scrape {
            tallies: self.tallies.clone(),
            core: self.shared.core.clone(),
            source: self.shared.source.clone(),
            witnesses: self.shared.witnesses.clone(),
        };
        let workers = self.listeners.len();
        let mut threads = Vec::with_capacity(workers + 1);
        for (number, (listener, tally)) in self.listeners.into_iter().zip(self.tallies).enumerate()
        {
            let (shared, stopping) = (self.shared.clone(), stopping.clone());
            let serve = move || async move {
                let site = Site::new(shared, tally, number);
                thread::serve(listener, site, stopping).await
            };
            threads.push(start(format!("pointsman-{number}"), ended.clone(), serve)?);
        }
        let (admin, more, shared) = (self.admin, self.admin_routes, self.shared);
        let keep = move || keeper::keep(admin, shared, scrape, more, keeper_stopping);
        threads.push(start("pointsman-keeper".to_owned(), ended, keep)?);
        let died = tokio::select! {
            () = shutdown => None,
            name = ends.recv() => name,
        };
        let _ = stop.send(true);
        let missing = usize::from(died.as_ref().is_some_and(|name| name != "pointsman-keeper"));
        for _ in missing..workers {
            ends.recv().await;
        }
        let _ = stop_keeper.send(true);
        for thread in threads {
            let _ = thread.join();
        }
        died.map_or(Ok(()), |name| Err(Error::Died(name)))
    }
}

impl Settings {
    /// All that [`Proxy::bind`] checks, without taking an address or a target number.
    ///
    /// # Errors
    /// The first setting that cannot be used.
    pub fn check(&self) -> Result<(), Error> {
        names(self)?;
        Checked::all(&self.pools).map(drop)
    }
}

/// Where requests say who they belong to, and where they want to go.
fn names(settings: &Settings) -> Result<(Identifier, Option<HeaderName>), Error> {
    let identifier = Identifier::new(&settings.session)?;
    let explicit_header = (settings.explicit_header.as_deref())
        .filter(|name| !name.is_empty())
        .map(|name| {
            HeaderName::try_from(name).map_err(|_| BadSetting::HeaderName {
                setting: "explicit_header",
                name: name.to_owned(),
            })
        })
        .transpose()?;
    Ok((identifier, explicit_header))
}

/// Says that a thread is over, also when it panics.
struct Ended(String, mpsc::UnboundedSender<String>);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.1.send(std::mem::take(&mut self.0));
    }
}

/// A thread with a runtime of its own, on which everything stays.
fn start<F: Future<Output = io::Result<()>>>(
    name: String,
    ended: mpsc::UnboundedSender<String>,
    work: impl FnOnce() -> F + Send + 'static,
) -> Result<std::thread::JoinHandle<()>, Error> {
    let failed = |source| Error::Thread {
        what: name.clone(),
        source,
    };
    let runtime = (tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build())
    .map_err(failed)?;
    let ended = Ended(name.clone(), ended);
    (std::thread::Builder::new().name(name.clone()))
        .spawn(move || {
            let result = LocalSet::new().block_on(&runtime, work());
            if let Err(error) = result {
                tracing::error!(thread = ended.0, %error, "the thread ends");
            }
            drop(runtime);
            drop(ended);
        })
        .map_err(failed)
}

/// One socket per thread: the kernel spreads connections, and no thread takes another's.
fn listen_each(
    what: &'static str,
    address: SocketAddr,
    threads: usize,
) -> Result<(Vec<TcpListener>, SocketAddr), Error> {
    // Reuse would also let a second proxy join in silently: the address must be free at first.
    let (probe, _) = listen(what, address, false)?;
    drop(probe);
    let (first, bound) = listen(what, address, true)?;
    let mut listeners = vec![first];
    for _ in 1..threads {
        listeners.push(listen(what, bound, true)?.0);
    }
    Ok((listeners, bound))
}

fn listen(
    what: &'static str,
    address: SocketAddr,
    shared: bool,
) -> Result<(TcpListener, SocketAddr), Error> {
    let open = || {
        let socket = Socket::new(
            Domain::for_address(address),
            Type::STREAM,
            Some(Protocol::TCP),
        )?;
        socket.set_reuse_address(true)?;
        socket.set_reuse_port(shared)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        let listener = TcpListener::from(socket);
        let bound = listener.local_addr()?;
        Ok((listener, bound))
    };
    open().map_err(|source| Error::Listen {
        what,
        address,
        source,
    })
}
