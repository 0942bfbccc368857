//! Fills the index of claims before the first container is listed.

use std::sync::Arc;

use sandboxd_actors::journal::{Contents, Draft, JournalError, JournalHandle};
use sandboxd_actors::pool::claims::Claims;

use crate::guest::GuestsOnDisk;

/// Loads the claims from the journal. A new journal has none, so the copies beside the sandboxes' sockets are used
/// until the containers are adopted. An older journal has its claims only in these files; they are imported as entries.
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
