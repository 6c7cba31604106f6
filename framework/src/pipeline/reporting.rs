//! The last steps of a delivery: its reports are sent, and then it is settled.
//!
//! Nothing waits for that: the report buffer keeps the delivery and says when the reports are
//! confirmed, together with those of many others. So a delivery needs no task of its own while its
//! reports are on their way.

use std::sync::Arc;

use contract::TrackingReport;
use contract::rest::LetterCause::Unroutable;
use futures_util::future::Either;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::{Pipeline, REDELIVERY_DELAY, Unsettled, unless_it_panics};
use crate::broker::{Delivery, PublishError};
use crate::current::CurrentMessage;
use crate::handler::{BatchHandler, Received};
use crate::steps::attempts::Attempts;
use crate::steps::full_pipe::FullPipe;
use crate::steps::open_deliveries::KeptOpen;
use crate::steps::quarantine::Standing;
use crate::steps::report_buffer::{AwaitsConfirm, Reports};
use tracing::warn;

/// A delivery that has caused everything but its reports, which are on their way. It comes again if
/// it is dropped.
struct Reporting<H> {
    delivery: Delivery,
    standing: Standing,
    pipeline: Arc<Pipeline<H>>,
    /// It is open, and the runtime waits for it, until it is settled.
    open: Arc<KeptOpen>,
    running: TaskTrackerToken,
}

impl<H: BatchHandler> Pipeline<H> {
    /// Sends the reports of a delivery. The delivery is settled once they are confirmed, after this
    /// has returned.
    pub(super) async fn report_and_settle(
        self: &Arc<Self>,
        received: Received,
        list: Vec<TrackingReport>,
        open: Arc<KeptOpen>,
    ) {
        let Received {
            delivery,
            message,
            standing,
            ..
        } = received;
        let reports = Reports::of(&message, list);
        if !standing.is_isolated() {
            return self.report_then_settle((delivery, standing), reports, open);
        }
        let Some(reports) = reports else {
            return delivery.ack();
        };
        // Nothing else may run before it is settled.
        let sent = self.reports.send(reports.clone()).await;
        self.settle_reported(delivery, standing, reports, sent)
            .await;
    }

    /// Sends the reports of a delivery beside which others run. It is settled once they are
    /// confirmed, after this has returned; at once if there are none.
    pub(super) fn report_then_settle(
        self: &Arc<Self>,
        (delivery, standing): (Delivery, Standing),
        reports: Option<Reports>,
        open: Arc<KeptOpen>,
    ) {
        let Some(reports) = reports else {
            return delivery.ack();
        };
        let reporting = Reporting {
            delivery,
            standing,
            pipeline: Arc::clone(self),
            open,
            running: self.running.token(),
        };
        self.reports.send_for(reports, Box::new(reporting));
    }

    /// Sends reports to the tracking pipe of the message and waits for their confirm.
    pub(super) async fn report(
        &self,
        message: &Arc<CurrentMessage>,
        list: Vec<TrackingReport>,
    ) -> Result<(), Unsettled> {
        match Reports::of(message, list) {
            Some(reports) => {
                let sent = self.reports.send(reports.clone()).await;
                self.until_sent(reports, sent).await
            }
            None => Ok(()),
        }
    }

    /// Settles a delivery whose reports were sent with this result. One whose reports cannot be
    /// sent goes to the invalid pipe.
    async fn settle_reported(
        &self,
        delivery: Delivery,
        standing: Standing,
        reports: Reports,
        sent: Result<(), PublishError>,
    ) {
        let settled = match self.until_sent(reports, sent).await {
            Err(reason @ Unsettled::Unreportable(_)) => {
                self.move_to_invalid(&delivery, Unroutable, &reason.to_string())
                    .await
            }
            reported => reported,
        };
        self.settle(delivery, standing, settled).await;
    }

    /// Sends reports again while the broker refuses them, because the tracking pipe will have room
    /// again and the task must not run again meanwhile. `sent` is the result of the first time.
    async fn until_sent(
        &self,
        reports: Reports,
        mut sent: Result<(), PublishError>,
    ) -> Result<(), Unsettled> {
        let mut full_pipe = None;
        loop {
            match sent {
                Ok(()) => return Ok(()),
                Err(error @ PublishError::Closed) => return Err(error.into()),
                Err(
                    error @ (PublishError::Impossible { .. }
                    | PublishError::Unacceptable { .. }
                    | PublishError::Unroutable { .. }),
                ) => return Err(Unsettled::Unreportable(error)),
                Err(error @ PublishError::Refused { .. }) => {
                    warn!(reason = %error, "the broker refuses reports; they are sent again");
                    full_pipe.get_or_insert_with(|| FullPipe::named(&reports.pipe));
                    let pause = tokio::time::sleep(REDELIVERY_DELAY);
                    if self.shutdown.run_until_cancelled(pause).await.is_none() {
                        return Err(Unsettled::Redeliver(error.to_string()));
                    }
                }
            }
            sent = self.reports.send(reports.clone()).await;
        }
    }
}

impl<H: BatchHandler> AwaitsConfirm for Reporting<H> {
    fn confirmed(self: Box<Self>) {
        self.delivery.ack();
    }

    fn unconfirmed(self: Box<Self>, reports: Reports, error: PublishError) {
        let Self {
            delivery,
            standing,
            pipeline,
            open,
            running,
        } = *self;
        let about = reports.traced.clone().or_else(|| again(&delivery));
        let content = delivery.content().clone();
        running.task_tracker().clone().spawn(async move {
            let settled = pipeline.settle_reported(delivery, standing, reports, Err(error));
            let settled = match about {
                Some(about) => Either::Left(about.scope(settled)),
                None => Either::Right(settled),
            };
            let settled = unless_it_panics(content, settled);
            // Dropped on `abort`, it goes back to the broker.
            pipeline.abort.run_until_cancelled(settled).await;
            drop((open, running));
        });
    }
}

/// Returns the message of a delivery once more, for what is logged about it.
pub(super) fn again(delivery: &Delivery) -> Option<Arc<CurrentMessage>> {
    let message = delivery.content().decode().ok()?;
    let attempt = Attempts::of(&delivery.headers, 0).failed.saturating_add(1);
    let pipe = Arc::clone(&delivery.pipe);
    Some(CurrentMessage::new(pipe, message, attempt, None, false))
}
