//! The report of a reconcile pass as it is on the wire.

use sandboxd_actors::reconciler::Report;
use sandboxd_actors::reconciler::plan::Action;
use sandboxd_protocol::system::{ReconcileAction, ReconcileActionKind, ReconcileBecause, ReconcileResult};

use crate::protocol::words;

pub fn report(report: &Report) -> ReconcileResult {
    ReconcileResult {
        dry_run: report.dry_run,
        containers: report.containers as u64,
        actions: report.actions.iter().filter_map(action).collect(),
    }
}

fn action(action: &Action) -> Option<ReconcileAction> {
    match action {
        Action::Adopt { sandbox, because } => Some(ReconcileAction {
            action: ReconcileActionKind::Adopt,
            chat_id: Some(sandbox.chat.to_string()),
            session_id: Some(sandbox.session.to_string()),
            container_id: sandbox.container.as_ref().map(ToString::to_string),
            status: Some(words::status(sandbox.status)),
            because: words::because(*because),
            message: sandbox.message.clone(),
        }),
        Action::Leave { container, why } => Some(ReconcileAction {
            action: ReconcileActionKind::Leave,
            chat_id: None,
            session_id: None,
            container_id: Some(container.to_string()),
            status: None,
            because: ReconcileBecause::LeftAlone,
            message: Some(why.clone()),
        }),
        // The observation only confirms the state of the chat.
        Action::Tell { .. } => None,
    }
}
