//! What a pass of the reconciler has done, or would do, as the caller reads it.

use sandboxd_actors::domain::ids::{ChatId, SessionId};
use sandboxd_actors::reconciler::Report;
use sandboxd_actors::reconciler::plan::Action;
use serde::Serialize;

use crate::protocol::text::Shown;

#[derive(Serialize)]
pub(super) struct ReportFields<'a> {
    dry_run: bool,
    containers: usize,
    actions: Vec<ActionFields<'a>>,
}

impl<'a> ReportFields<'a> {
    pub(super) fn of(report: &'a Report) -> Self {
        ReportFields {
            dry_run: report.dry_run,
            containers: report.containers,
            actions: report.actions.iter().filter_map(ActionFields::of).collect(),
        }
    }
}

#[derive(Serialize)]
struct ActionFields<'a> {
    action: &'static str,
    chat_id: Option<Shown<ChatId>>,
    session_id: Option<Shown<SessionId>>,
    container_id: Option<&'a str>,
    status: Option<&'static str>,
    because: &'static str,
    message: Option<&'a str>,
}

impl<'a> ActionFields<'a> {
    fn of(action: &'a Action) -> Option<Self> {
        match action {
            Action::Adopt { sandbox, because } => Some(ActionFields {
                action: "adopt",
                chat_id: Some(Shown(sandbox.chat)),
                session_id: Some(Shown(sandbox.session)),
                container_id: sandbox.container.as_ref().map(|id| id.as_str()),
                status: Some(sandbox.status.as_str()),
                because: because.as_str(),
                message: sandbox.message.as_deref(),
            }),
            Action::Leave { container, why } => Some(ActionFields {
                action: "leave",
                chat_id: None,
                session_id: None,
                container_id: Some(container.as_str()),
                status: None,
                because: "left_alone",
                message: Some(why),
            }),
            // Only confirms what is known.
            Action::Tell { .. } => None,
        }
    }
}
