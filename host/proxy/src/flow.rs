//! An answer on its way to the client. It holds what the request holds: the seat, the ticket and the
//! upstream connection, and gives them back when it ends, breaks, or is dropped because the client left.

use crate::pace::Pace;
use crate::report::{Kind as AnswerKind, Report, Subject};
use crate::site::Seat;
use crate::sse::EventScanner;
use crate::upstream::{Inflow, Torn};
use bytes::Bytes;
use http::header::{CONTENT_ENCODING, HeaderMap};
use http_body::{Body, Frame, SizeHint};
use pointsman_core::Ticket;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use thiserror::Error;
use tokio::time::{Instant, Sleep, sleep};

/// The body of every response to a client.
pub(crate) struct Reply(Kind);

enum Kind {
    /// made by the proxy; none: it was sent
    Whole(Option<Bytes>),
    /// from an engine
    Flow(Box<Flow>),
}

/// Why an answer breaks off.
#[derive(Debug, Error)]
pub(crate) enum CutOff {
    #[error("the engine broke off: {0}")]
    Broken(#[from] Torn),
    #[error("the engine was silent for too long")]
    Silent,
}

/// See the module.
pub(crate) struct Flow {
    inflow: Inflow,
    /// none: the request holds nothing on its target any more
    ticket: Option<Ticket>,
    /// none: not a status below 400, whose good end speaks for the engine; or it is over
    report: Option<Report>,
    scanner: Option<EventScanner>,
    /// none: nobody wants to know, or there is nothing to be measured
    pace: Option<Pace>,
    silence: Silence,
    seat: Seat,
}

impl Flow {
    /// `ticket`: none if the request was rolled back, and only the engine's words pass. `subject`: none
    /// if the answer is an error.
    pub(crate) fn new(
        inflow: Inflow,
        ticket: Option<Ticket>,
        subject: Option<Subject>,
        headers: &HeaderMap,
        pace: Option<Pace>,
        seat: Seat,
    ) -> Flow {
        let kind = AnswerKind::of(headers);
        let is_stream = kind == AnswerKind::Stream;
        let is_measured = is_stream && subject.is_some() && !headers.contains_key(CONTENT_ENCODING);
        let limit = seat.site().shared.settings.timeouts.idle_stream;
        let mut flow = Flow {
            inflow,
            ticket,
            report: subject.map(|subject| Report::new(subject, kind, headers)),
            scanner: is_stream.then(EventScanner::default),
            pace: pace.filter(|_| is_measured),
            silence: Silence::new(limit),
            seat,
        };
        if flow.inflow.is_over() {
            flow.finish();
        }
        flow
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, CutOff>>> {
        match self.inflow.poll(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref() {
                    self.pass(data);
                }
                if self.inflow.is_over() {
                    self.finish();
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(torn))) => {
                match torn {
                    // Dropped, the ticket counts as cancelled.
                    Torn::Client(_) => self.ticket = None,
                    Torn::Malformed(_) | Torn::Lost(_) => self.fail(),
                }
                Poll::Ready(Some(Err(CutOff::Broken(torn))))
            }
            Poll::Ready(None) => {
                self.finish();
                Poll::Ready(None)
            }
            Poll::Pending if self.silence.is_too_long(cx) => {
                self.fail();
                Poll::Ready(Some(Err(CutOff::Silent)))
            }
            Poll::Pending => Poll::Pending,
        }
    }

    fn pass(&mut self, data: &[u8]) {
        self.silence.broken();
        if let Some(ticket) = &mut self.ticket {
            ticket.output();
            if let Some(report) = &mut self.report {
                report.pass(self.seat.site(), ticket.target(), data);
            }
        }
        if let Some(scanner) = &mut self.scanner {
            let events = scanner.pass(data);
            if let Some(pace) = &mut self.pace {
                pace.arrived(events);
            }
        }
    }

    fn finish(&mut self) {
        if self.scanner.as_ref().is_some_and(EventScanner::failed) {
            return self.fail();
        }
        if let Some(ticket) = self.ticket.take() {
            let target = ticket.target();
            ticket.finish();
            if let Some(report) = self.report.take() {
                self.inflow.upstream().engine.succeeded();
                report.finish(self.seat.site(), target);
            }
        }
    }

    fn fail(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            let (site, target) = (self.seat.site(), ticket.target());
            ticket.fail();
            self.inflow
                .upstream()
                .engine
                .failed(&site.shared.core.fleet);
            if let Some(report) = self.report.take() {
                report.fail(site, target);
            }
        }
    }
}

impl Reply {
    pub(crate) fn whole(bytes: Bytes) -> Reply {
        Reply(Kind::Whole(Some(bytes)))
    }

    pub(crate) fn flow(flow: Flow) -> Reply {
        Reply(Kind::Flow(Box::new(flow)))
    }
}

impl Body for Reply {
    type Data = Bytes;
    type Error = CutOff;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, CutOff>>> {
        match &mut self.get_mut().0 {
            Kind::Whole(bytes) => Poll::Ready(bytes.take().map(Frame::data).map(Ok)),
            Kind::Flow(flow) => flow.poll(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Whole(bytes) => bytes.is_none(),
            Kind::Flow(flow) => flow.inflow.is_drained(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Kind::Flow(flow) => flow.inflow.size_hint(),
        }
    }
}

/// How long nothing came. Costs no clock reading per chunk, so that it ends between one and two times
/// the limit after the last.
struct Silence {
    limit: Duration,
    timer: Option<Pin<Box<Sleep>>>,
    heard: bool,
}

impl Silence {
    fn new(limit: Duration) -> Silence {
        Silence {
            limit,
            timer: None,
            heard: false,
        }
    }

    fn broken(&mut self) {
        self.heard = true;
    }

    fn is_too_long(&mut self, cx: &mut Context<'_>) -> bool {
        if self.limit.is_zero() {
            return false;
        }
        let limit = self.limit;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(limit)));
        while timer.as_mut().poll(cx).is_ready() {
            if !std::mem::take(&mut self.heard) {
                return true;
            }
            timer.as_mut().reset(Instant::now() + limit);
        }
        false
    }
}
