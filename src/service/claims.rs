//! Fills the index of claims before anything asks the engine for containers.

use std::sync::Arc;

use sandboxd_actors::journal::{Contents, Draft, JournalError, JournalHandle};
use sandboxd_actors::pool::claims::Claims;

use crate::guest::GuestsOnDisk;

/// Reads the claims from the journal. A new journal has none, so the copies beside the sandboxes' sockets count until its
/// containers are adopted. The claims of a journal from before claims were entries are files, and become entries here.
pub(super) async fn load(
    claims: &Claims,
    contents: &Contents,
    guests: &GuestsOnDisk,
    journal: &JournalHandle,
) -> Result<(), JournalError> {
    if contents.fresh || contents.claims_in_files {
        for claim in guests.stored_claims() {
            claims.insert(Arc::new(claim));
        }
    }
    for claim in &contents.claims {
        claims.insert(Arc::clone(claim));
    }
    if contents.claims_in_files && !contents.fresh {
        let entries = claims.all().into_iter().map(Draft::Claim);
        journal.write(entries.chain([Draft::ClaimsImported]).collect()).await?;
    }
    guests.restore_slots();
    Ok(())
}

#[cfg(test)]
pub(super) mod tests;
